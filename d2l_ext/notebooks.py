"""Run the notebooks and hold what they print to their output blocks.

`python -m d2l_ext.notebooks [NAME ...]` runs all notebooks, or those named;
`pytest --nbmake notebooks` does the same through conftest.py. The sources
are the .py files in notebooks/; the executed notebooks go to build/. After a
notebook with exercises its solutions run in the same kernel: each exercise
needs one that is right.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from textwrap import indent

import jupytext
import nbformat
from nbclient.exceptions import DeadKernelError
from nbmake.nb_run import NotebookRun

from . import runs
from .exercises import tally
from .exercises.engine import RIGHT
from .files import atomic_path
from .output_blocks import Counts, Fault, check, headings_above

ROOT = Path(__file__).resolve().parent.parent
CELL_SECONDS = 1800        # for one cell, unless the notebook's header says
PEAK_LIMIT = 4 * 10**9     # bytes: half of a laptop with 8 GB
PROBE = '''def _probe():
    import json
    from d2l_ext import runs
    from d2l_ext.exercises import engine
    print(json.dumps({**runs.report(), 'verdicts': engine.latest}))
    engine.latest.clear()
_probe()
del _probe'''
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
    exercises: list = field(default_factory=list)  # ids
    solved: list = field(default_factory=list)     # ids with a right solution
    has_solutions: bool = True  # False: a course took notebooks/solutions out
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
    with atomic_path(profile / 'ipython_kernel_config.py') as partial:
        Path(partial).write_text(  # another kernel may read it just now
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


def error_fault(error, cells, extra):
    """nbmake's error as a fault; its trace holds the cell and where."""
    index = error.failing_cell_index
    trace = ANSI.sub('', error.trace).strip()
    why = ANSI.sub('', error.summary).strip().splitlines()
    why = why[0] if why else 'the cell stopped the kernel'
    solution = index - len(cells) - 1  # the first extra cell is a probe
    if 0 <= solution < len(extra) - 2:
        return in_solutions(Fault(headings_above(extra[1:])[solution],
                                  solution, why, detail=trace))
    if index >= len(cells):
        return Fault('after the last cell', index,
                     f'the run could not be asked for its labels: {why}',
                     detail=trace)
    return Fault(headings_above(cells)[index], index, why, detail=trace)


def execute(notebook, target, extra, timeout):
    """Run a notebook and then `extra` cells in the same kernel.

    Returns (executed notebook, executed extra cells, fault or None). The
    extra cells are cut off again: a reader never sees them.
    """
    own = len(notebook.cells)
    notebook.cells += extra
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
    fault = result.error and error_fault(result.error, executed.cells, extra)
    return executed, extra, fault


# --- Solutions --------------------------------------------------------------


def solution_of(source):
    """Where the solutions of a notebook stand, if there are any."""
    return source.parent / 'solutions' / source.name


def exercise_ids(cells):
    return [cell.metadata['exercise'] for cell in cells
            if 'exercise' in cell.metadata]


def solution_cells(source, ids):
    """The cells that run after a notebook with these exercises."""
    path = solution_of(source)
    return jupytext.read(path).cells if ids and path.exists() else []


def in_solutions(fault):
    return replace(fault, heading=f'solutions, {fault.heading}')


def solution_faults(ids, said, raised):
    """A fault for each exercise whose solution is not right or is not there.

    said: {id: (verdict, lines)}; raised: whether a cell stopped the rest.
    """
    for id in ids:
        if id not in said:
            if not raised:
                yield Fault('solutions', 0,
                            f'{id}: no solution makes an attempt at it')
        elif said[id][0] != RIGHT:
            yield Fault('solutions', 0, f'{id}: the solution is '
                        f'{said[id][0]}', detail='\n'.join(said[id][1]))


def judge_solutions(result, cells, probe, fault):
    """Put into a result what came of the solutions' cells."""
    said = {} if fault else answer(probe)['verdicts']
    result.solved = [id for id in result.exercises
                     if said.get(id, [''])[0] == RIGHT]
    result.faults += [fault] if fault else []
    result.faults += solution_faults(result.exercises, said, bool(fault))
    if len(result.solved) == len(result.exercises):
        report = check(cells, result.labels)
        result.counts += report.counts
        result.faults += map(in_solutions, report.faults)


def printed(cell):
    return ''.join(output['text'] for output in cell.outputs
                   if output.get('name') == 'stdout')


def answer(probe):
    """What the probe cell printed: runs.report() and the verdicts so far."""
    return json.loads(printed(probe).splitlines()[-1])


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
    notebook = jupytext.read(source)
    result = Result(source.stem, exercises=exercise_ids(notebook.cells),
                    has_solutions=solution_of(source).parent.is_dir())
    solutions = solution_cells(source, result.exercises)
    start = time.monotonic()
    notebook, extra, fault = execute(
        notebook, target, [probe(), *solutions, probe()], timeout)
    result.seconds = round(time.monotonic() - start, 1)
    if not extra or not printed(extra[0]):  # the notebook itself stopped
        result.faults = [fault]
    else:
        hold(result, notebook.cells, answer(extra[0]))
        if result.has_solutions:
            judge_solutions(result, extra[1:-1], extra[-1], fault)
    if not result.faults:
        notebook.metadata['d2l_ext'] = {'fingerprint': mark,
                                        **result.record()}
    with atomic_path(target) as partial:
        nbformat.write(notebook, partial)
    return result


def probe():
    return nbformat.v4.new_code_cell(PROBE)


def hold(result, cells, said):
    """Put into a result what came of the notebook's own cells."""
    result.labels, result.peak_bytes = said['labels'], said['peak_bytes']
    report = check(cells, result.labels)
    result.counts = report.counts
    result.faults = report.faults + peak_fault(result.peak_bytes)


# --- Two at once ------------------------------------------------------------


def measures_time(source):
    """Whether a notebook or its solutions time something, and want quiet."""
    return any('timeit(' in path.read_text(encoding='utf-8')
               for path in (source, solution_of(source)) if path.exists())


def keep_to(shares):
    """Keep a process, and the kernels that it starts, to some of the cores."""
    os.sched_setaffinity(0, shares.get())


@contextmanager
def side_by_side(chosen, root=ROOT, timeout=CELL_SECONDS, at_once=2):
    """Run notebooks, two at once; gives {source: future of its Result}.

    A kernel alone keeps two cores busy for three quarters of the time. Each
    has its share of the cores: threads that share theirs wait for each other.
    Nothing is started where a process cannot be kept to a core, or where
    there is only one. What has not begun at the end is left out.
    """
    cores = sorted(getattr(os, 'sched_getaffinity', lambda _: [])(0))
    if len(chosen) < 2 or len(cores) < at_once:
        yield {}
        return
    spawn = multiprocessing.get_context('spawn')
    shares = spawn.Queue()
    for i in range(at_once):
        shares.put(cores[i::at_once])
    pool = ProcessPoolExecutor(at_once, spawn, keep_to, (shares,))
    try:
        yield {source: pool.submit(run, source, root, timeout)
               for source in chosen}
    finally:
        pool.shutdown(cancel_futures=True)


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
    parts = [sys.version, *installed(),
             f'solutions {solution_of(source).parent.is_dir()}']
    parts += [f'{name}={value}' for name, value in sorted(os.environ.items())
              if name.startswith('D2L_') and name != 'D2L_HEADLESS']
    for path in [source, solution_of(source), root / 'environment.yml',
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


def exercises_line(results, root=ROOT):
    """How many exercises there are, and what stands behind their checks."""
    ids = {id for result in results for id in result.exercises}
    if not ids:
        return 'exercises: 0'
    bodies = [result for result in results if result.exercises]
    cells = sum(len(result.exercises) for result in bodies)
    text = f'exercises: {len(ids)} ({cells} in the notebooks run)'
    if all(result.has_solutions for result in bodies):
        solved = sum(len(result.solved) for result in bodies)
        text += f', solutions passed: {solved} of {cells}'
    else:
        text += ', solutions: none run, there is no notebooks/solutions/'
    refused = tally.read(root)
    return text + (', wrong answers: not tested as they stand, see tests/'
                   if refused is None else
                   f', wrong answers refused: {refused}')


def summary(results, root=ROOT):
    """The last lines: what was run, and how firmly its numbers were held."""
    counts = sum((result.counts for result in results), Counts())
    faults = sum(len(result.faults) for result in results)
    seconds = sum(result.seconds for result in results if result.fresh)
    return (f'notebooks run or up to date: {len(results)}, faults: {faults}, '
            f'seconds: {seconds:.1f}\n'
            f'printed numbers held: {counts}\n'
            f'{exercises_line(results, root)}')


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
    print(summary(results, root))
    return any(result.faults for result in results)


if __name__ == '__main__':
    sys.exit(main())
