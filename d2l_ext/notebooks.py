"""Run the notebooks and hold what they print to their output blocks.

`python -m d2l_ext.notebooks [NAME ...]` runs all notebooks, or those named;
`pytest --nbmake notebooks` does the same through conftest.py. The sources
are the .py files in notebooks/; the executed notebooks go to build/.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from textwrap import indent

import jupytext
import nbformat
from nbclient.exceptions import DeadKernelError
from nbmake.nb_run import NotebookRun

from . import runs
from .files import atomic_path
from .output_blocks import Counts, Fault, check, headings_above

ROOT = Path(__file__).resolve().parent.parent
CELL_SECONDS = 1800        # for one cell, unless the notebook's header says
PEAK_LIMIT = 4 * 10**9     # bytes: half of a laptop with 8 GB
PROBE = ('import json\nfrom d2l_ext import runs\n'
         'print(json.dumps(runs.report()))')
ANSI = re.compile(r'\x1b\[[\d;]*m')


@dataclass
class Result:
    """How one notebook ran. peak_bytes is None where it is not known."""

    name: str
    seconds: float = 0.0
    peak_bytes: int | None = None
    labels: list = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    faults: list = field(default_factory=list)
    fresh: bool = True  # False: an earlier run still holds

    def line(self):
        peak = ('peak unknown' if self.peak_bytes is None
                else f'{self.peak_bytes / 1e9:.2f} GB')
        state = ('up to date' if not self.fresh
                 else f'FAULTS: {len(self.faults)}' if self.faults else 'ok')
        return (f'{self.name:<22} {self.seconds:6.1f} s  {peak:>8}  '
                f'{self.counts}  [{" ".join(self.labels)}]  {state}')

    def record(self):
        """It as plain data, the faults as their text."""
        return {**asdict(self), 'faults': [str(f) for f in self.faults]}


def from_record(record, **changes):
    return Result(**{**record, 'counts': Counts(**record['counts']),
                     **changes})


# --- Which notebooks ------------------------------------------------------


def sources(root=ROOT):
    """The notebooks, in the order in which they are read."""
    return sorted((root / 'notebooks').glob('*.py'))


def find(names, root=ROOT):
    """The sources with these names or paths; all of them for no names.

    ValueError, with the names there are, for an unknown one.
    """
    known = {path.stem: path for path in sources(root)}
    found = []
    for name in names:
        path = Path(name)
        beside = path.parent in (Path('.'), Path('notebooks')) or (
            path.resolve().parent == root / 'notebooks')
        if not beside or path.stem not in known:
            raise ValueError(f'no notebook {name!r}, there are: '
                             f'{", ".join(known) or "none"}')
        found.append(known[path.stem])
    return found or list(known.values())


# --- One run --------------------------------------------------------------


@contextmanager
def kernel_environment(build):
    """The variables that kernels inherit.

    MPLBACKEND is taken out: an inherited one would show no figures. The
    IPython profile is an own one: a reader's start-up files print things.
    """
    profile = build / 'ipython' / 'profile_default'
    profile.mkdir(parents=True, exist_ok=True)
    (profile / 'ipython_kernel_config.py').write_text(
        "c = get_config()\nc.IPKernelApp.log_level = 'ERROR'\n")
    before = dict(os.environ)
    os.environ['D2L_HEADLESS'] = '1'
    os.environ['IPYTHONDIR'] = str(build / 'ipython')
    os.environ.pop('MPLBACKEND', None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def error_fault(error, cells):
    """nbmake's error as a fault; its trace holds the cell and where."""
    index = error.failing_cell_index
    trace = ANSI.sub('', error.trace).strip()
    why = ANSI.sub('', error.summary).strip().splitlines()
    why = why[0] if why else 'the cell stopped the kernel'
    if index >= len(cells):
        return Fault('after the last cell', index,
                     f'the run could not be asked for its labels: {why}',
                     detail=trace)
    return Fault(headings_above(cells)[index], index, why, detail=trace)


def execute(notebook, target, extra, timeout):
    """Run a notebook and then `extra` sources as cells in the same kernel.

    Returns (executed notebook, executed extra cells, fault or None). The
    extra cells are cut off again: a reader never sees them.
    """
    own = len(notebook.cells)
    notebook.cells += [nbformat.v4.new_code_cell(text) for text in extra]
    nbformat.write(notebook, target)
    try:
        with kernel_environment(target.parent):
            result = NotebookRun(target, timeout).execute()
    except DeadKernelError:
        del notebook.cells[own:]
        return notebook, [], Fault(
            'the whole notebook', 0,
            'the kernel died (out of memory?); what it printed is lost')
    executed, extra = result.nb, result.nb.cells[own:]
    del executed.cells[own:]
    fault = result.error and error_fault(result.error, executed.cells)
    return executed, extra, fault


def answer(probe):
    """What the probe cell printed: runs.report() of the kernel."""
    text = ''.join(output['text'] for output in probe.outputs
                   if output.get('name') == 'stdout')
    return json.loads(text.splitlines()[-1])


def peak_fault(peak_bytes):
    if peak_bytes is None or peak_bytes <= PEAK_LIMIT:
        return []
    return [Fault('the whole notebook', 0,
                  f'peak memory {peak_bytes / 1e9:.2f} GB is above '
                  f'{PEAK_LIMIT / 1e9:.2f} GB')]


def run(source, root=ROOT, timeout=CELL_SECONDS):
    """Execute one notebook into build/ and hold it to its blocks."""
    target = built(source, root)
    target.parent.mkdir(exist_ok=True)
    drawings = root / 'notebooks' / 'img'
    if drawings.exists():  # the executed notebook shows them, too
        shutil.copytree(drawings, target.parent / 'img', dirs_exist_ok=True)
    mark = fingerprint(source, root)  # before: the source may change meanwhile
    result, start = Result(source.stem), time.monotonic()
    notebook, extra, fault = execute(jupytext.read(source), target, [PROBE],
                                     timeout)
    result.seconds = round(time.monotonic() - start, 1)
    if fault:
        result.faults = [fault]
    else:
        said = answer(extra[0])
        result.labels, result.peak_bytes = said['labels'], said['peak_bytes']
        report = check(notebook.cells, result.labels)
        result.counts = report.counts
        result.faults = report.faults + peak_fault(result.peak_bytes)
    if not result.faults:
        notebook.metadata['d2l_ext'] = {'fingerprint': mark,
                                        **result.record()}
    with atomic_path(target) as partial:
        nbformat.write(notebook, partial)
    return result


# --- What need not run again ------------------------------------------------


def built(source, root=ROOT):
    return root / 'build' / f'{source.stem}.ipynb'


def installed():
    """Names and versions of what is installed: a new torch is a new run."""
    return sorted({f'{d.name}=={d.version}' for d in distributions()})


def fingerprint(source, root=ROOT):
    """A hash of all that a passed run rests on.

    Leaves out the data: it is known by its own hashes.
    """
    package = Path(__file__).parent
    parts = [sys.version, *installed()]
    parts += [f'{name}={value}' for name, value in sorted(os.environ.items())
              if name.startswith('D2L_') and name != 'D2L_HEADLESS']
    for path in [source, root / 'environment.yml',
                 *sorted(package.rglob('*.py'))]:
        if path.exists():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            parts.append(f'{path.name} {content}')
    return hashlib.sha256('\n'.join(parts).encode()).hexdigest()


def earlier(source, root=ROOT):
    """The result of an earlier run that passed and still holds, or None."""
    target = built(source, root)
    if not target.exists():
        return None
    try:
        record = dict(json.loads(target.read_text())['metadata']['d2l_ext'])
    except (ValueError, KeyError):  # stopped half-way, or it did not pass
        return None
    if record.pop('fingerprint') != fingerprint(source, root):
        return None
    if record['labels'][1:] != list(astuple(runs.current()))[1:]:
        return None  # a text or a checkpoint has come or gone
    return from_record(record, fresh=False)


# --- The command -----------------------------------------------------------


def summary(results):
    """The last lines: what was run, and how firmly its numbers were held."""
    counts = sum((result.counts for result in results), Counts())
    faults = sum(len(result.faults) for result in results)
    seconds = sum(result.seconds for result in results if result.fresh)
    return (f'notebooks run or up to date: {len(results)}, faults: {faults}, '
            f'seconds: {seconds:.1f}\n'
            f'printed numbers held: {counts}')


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(
        prog='python -m d2l_ext.notebooks',
        description='Run the notebooks and hold what they print to their '
                    'output blocks.')
    parser.add_argument('names', nargs='*', metavar='NAME')
    parser.add_argument('--force', action='store_true',
                        help='run also what is up to date')
    parser.add_argument('--timeout', type=int, default=CELL_SECONDS,
                        help='seconds for one cell (%(default)s)')
    options = parser.parse_args(arguments)
    try:
        chosen = find(options.names, root)
    except ValueError as error:
        parser.error(str(error))
    if not chosen:
        parser.error(f'no notebooks in {root / "notebooks"}')
    results = []
    try:
        runs.current()  # a label that is none is refused before any kernel
        for source in chosen:
            result = (None if options.force else earlier(source, root)) or (
                run(source, root, options.timeout))
            results.append(result)
            print(result.line(), flush=True)
            for fault in result.faults:
                print(indent(str(fault), '    '), flush=True)
    except (OSError, ValueError) as error:  # a label, the data, the disk
        print(error, file=sys.stderr)
        return 1
    print(summary(results))
    return any(result.faults for result in results)


if __name__ == '__main__':
    sys.exit(main())
