"""The rows as a table, as data and as a plot; no framework needed."""

import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..files import atomic_path
from ..utils import format_bytes
from .cases import METHODS, MODELS, PEERS

NOTES = '''\
tokens/s   of all sequences together; medians of the runs after a warm-up
share      least seconds per step, its bytes over GB/s, over seconds per
           step; the bytes are all weights and the cache of all sequences, in
           fp32, also for naive
GB/s       the most that a plain loop in the same framework read, just before
           and after the row: it is of those minutes, and not every framework
           reads equally fast, so shares compare best within one of them
peak       of the process (on a GPU: of its memory) while the runs were
           measured, the weights and the framework included, compiling not
to peer    tokens/s over those of the better of the two transformers rows
naive      reads all again for each token, so few steps are measured; jax
           has no growing cache: it would compile anew for every length
hf         times from a streamer: prompt to first token, then token to token;
           transformers compiles its static cache on accelerators only
All decode greedily, and wait for each token before the next step.'''
HEADINGS = ('model', 'batch', 'context', 'method', 'prefill tokens/s',
            'decode tokens/s', 'share', 'GB/s', 'peak', 'prefill to peer',
            'decode to peer', 'runs')


def key(row):
    return row['model'], row['batch'], row['context']


def best_peers(rows):
    """{case: the larger of its peers' tokens/s}, for prefill and decode."""
    best = {}
    for row in rows:
        if row['method'] in PEERS and 'why' not in row:
            for name in ('prefill', 'decode'):
                rates = best.setdefault((name, *key(row)), [])
                rates.append(row[f'{name}_rate'])
    return {case: max(rates) for case, rates in best.items()}


def with_rates(row):
    """A measured row with tokens per second and share of the ceiling."""
    if 'why' in row:
        return row
    batch = row['batch']
    return dict(row, prefill_rate=batch * row['context'] / row['prefill_s'],
                decode_rate=batch / row['step_s'],
                share=row['bytes'] / row['bandwidth'] / row['step_s'])


def derived(rows):
    """The rows in the table's order, with all that follows from times.

    prefill_ratio, decode_ratio: to the best peer, None where there is none.
    """
    rows = list(map(with_rates, rows))
    best = best_peers(rows)
    for row in rows:
        for name in () if 'why' in row else ('prefill', 'decode'):
            peer = best.get((name, *key(row)))
            row[f'{name}_ratio'] = peer and row[f'{name}_rate'] / peer
    order = {name: i for i, name in enumerate((*MODELS, *METHODS))}
    return sorted(rows, key=lambda row: (
        order[row['model']], row['batch'], row['context'],
        order[row['method']]))


def disagreements(rows):
    """Lines on methods whose greedy tokens are not those of the others.

    Each case's first row is what the others are held to, as far as both go.
    """
    first, lines = {}, []
    for row in rows:
        if not row.get('ids'):
            continue
        one = first.setdefault(key(row), row)
        n = min(len(one['ids']), len(row['ids']))
        if one['ids'][:n] != row['ids'][:n]:
            lines.append(f'{row["model"]}, batch {row["batch"]}, context '
                         f'{row["context"]}: {row["method"]} does not '
                         f'continue as {one["method"]}')
    return lines


# --- The table --------------------------------------------------------------


def number(x):
    """Three digits that count, all before the point; a dash for nothing."""
    if x is None:
        return '-'
    return f'{x:.0f}' if x >= 100 else f'{x:#.3g}'.rstrip('.')


def cells(row):
    """What the table shows of a row; the last may be a reason."""
    case = [row['model'], str(row['batch']), str(row['context']),
            row['method']]
    if 'why' in row:
        return [*case, row['why']]
    peak = row['peak_bytes']
    return [*case, number(row['prefill_rate']), number(row['decode_rate']),
            number(100 * row['share']) + '%',
            number(row['bandwidth'] / 1e9),
            '-' if peak is None else format_bytes(peak),
            number(row['prefill_ratio']), number(row['decode_ratio']),
            str(row['repeats'])]


def table(rows):
    """Aligned lines, a blank one between cases."""
    shown = [list(HEADINGS), *map(cells, rows)]
    full = [line for line in shown if len(line) == len(HEADINGS)]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    for i in range(4):  # a reason's row has these, too
        widths[i] = max(len(line[i]) for line in shown)
    lines, before = [], None
    for row, line in zip([None, *rows], shown, strict=True):
        if before and key(row) != key(before):
            lines.append('')
        before = row
        if len(line) == len(HEADINGS):
            rest = [c.rjust(w) for c, w in zip(line[4:], widths[4:],
                                               strict=True)]
        else:
            rest = line[4:]
        model, batch, context, method = line[:4]
        lines.append('  '.join([
            model.ljust(widths[0]), batch.rjust(widths[1]),
            context.rjust(widths[2]), method.ljust(widths[3]), *rest]))
    return '\n'.join(lines)


def cpu_model():
    info = Path('/proc/cpuinfo')
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()


def cores():
    """Processors that this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def installed(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return 'not installed'


def header():
    """What the numbers depend on, apart from the rows."""
    return dict(
        date=time.strftime('%Y-%m-%d %H:%M'),
        python=platform.python_version(),
        **{name: installed(name) for name in ('torch', 'jax',
                                              'transformers')},
        cpu=cpu_model(), cores=cores(),
        threads=os.environ.get('OMP_NUM_THREADS', 'as many as cores'))


def head_lines(head, rows):
    """The header in words, with what the rows say of the machine."""
    rows = [row for row in rows if 'why' not in row]
    lines = [f'{head["date"]}, Python {head["python"]}, torch '
             f'{head["torch"]}, jax {head["jax"]}, transformers '
             f'{head["transformers"]}',
             f'{head["cpu"]}, cores: {head["cores"]}, torch threads: '
             f'{head["threads"]}']
    if rows:
        rates = [row['bandwidth'] / 1e9 for row in rows]
        devices = sorted({row['device'] for row in rows})
        lines.append(f'computed on {", ".join(devices)}; reads '
                     f'{min(rates):.1f} to {max(rates):.1f} GB/s')
    return lines


def text(head, rows):
    """All of table.txt; rows: derived."""
    there = {row['method'] for row in rows}
    methods = '\n'.join(f'{name:14} {what}' for name, what
                        in METHODS.items() if name in there)
    parts = ['\n'.join(head_lines(head, rows)), table(rows), NOTES, methods]
    if lines := disagreements(rows):
        parts.insert(2, '\n'.join(lines))
    return '\n\n'.join(parts) + '\n'


# --- Files ------------------------------------------------------------------


def write(out, head, rows):
    """table.txt and table.json in a folder; the text of the first."""
    rows = derived(rows)
    shown = text(head, rows)
    with atomic_path(out / 'table.txt') as partial:
        Path(partial).write_text(shown, encoding='utf-8')
    with atomic_path(out / 'table.json') as partial:
        Path(partial).write_text(json.dumps(
            dict(header=head, rows=rows), indent=1), encoding='utf-8')
    return shown
