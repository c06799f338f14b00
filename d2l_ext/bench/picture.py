"""The plot of the benchmark: share of the ceiling, a line per method."""

from matplotlib.figure import Figure

from ..files import atomic_path
from ..plotting import plot
from .cases import METHODS

# stroke: who computes; marker: how
STROKES = {'torch': '-', 'jax': '--', 'hf': ':'}
MARKERS = {'naive': 'x', 'growing': 'o', 'static': 's', 'donated': '^',
           'fast': 'D', 'dynamic': 'P'}


def style(method):
    backend, _, name = method.partition('-')
    return STROKES[backend] + MARKERS[name]


def lines(rows, model, batch):
    """{method: (contexts, shares)} of what was measured; rows: derived."""
    found = {}
    for method in METHODS:
        points = [(row['context'], row['share']) for row in rows
                  if 'why' not in row and (model, batch, method) == (
                      row['model'], row['batch'], row['method'])]
        if points:
            found[method] = tuple(zip(*points, strict=True))
    return found


def draw(rows, filename):
    """One panel per model, the smallest batch that was measured.

    Writes nothing where no row was measured.
    """
    measured = [row for row in rows if 'why' not in row]
    models = list(dict.fromkeys(row['model'] for row in measured))
    if not models:
        return
    figure = Figure(figsize=(5.5 * len(models), 3), layout='constrained')
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for model, axes in zip(models, panels, strict=True):
        batch = min(row['batch'] for row in measured
                    if row['model'] == model)
        found = lines(rows, model, batch)
        xs, ys = zip(*found.values(), strict=True)
        plot(xs, [[100 * y for y in line] for line in ys],
             xlabel='context, tokens', ylabel='share of the ceiling, %',
             legend=list(found), xscale='log', yscale='log',
             fmts=list(map(style, found)), axes=axes)
        axes.set_title(f'{model}, batch {batch}', fontsize='medium')
    with atomic_path(filename) as partial:
        figure.savefig(partial, format='svg')
