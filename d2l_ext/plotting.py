"""The book's `plot`: a few lines of data, axes with units, one call."""

import numpy as np
from matplotlib import cm, ticker
from matplotlib import pyplot as plt

# each line differs in stroke and marker, so it reads without colour
FMTS = ('-o', '--s', '-.^', ':D', '-v', '--x', '-.P', ':*')


def use_svg_display():
    """Draw sharp figures in Jupyter; elsewhere this does nothing."""
    try:
        from IPython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    if get_ipython():
        set_matplotlib_formats('svg')


def set_figsize(figsize=(3.5, 2.5)):
    """Set the size of the next figures, in inches."""
    use_svg_display()
    plt.rcParams['figure.figsize'] = figsize


def as_lines(data):
    """A list of 1-D arrays, from one line or several."""
    if hasattr(data, 'ndim'):
        return [np.asarray(data)] if data.ndim == 1 else list(map(
            np.asarray, data))
    data = list(data)
    if data and not hasattr(data[0], '__len__'):
        return [np.asarray(data)]
    return [np.asarray(line) for line in data]


def label_log_ticks(axes, which, values):
    """Plain numbers at a few values; never labels between the decades.

    On less than a decade matplotlib would print labels over each other.
    """
    axis = getattr(axes, f'{which}axis')
    axis.set_minor_formatter(ticker.NullFormatter())
    if which == 'y' and 0 < max(values) < 100 * min(values):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))
    if which == 'x' and len(values) <= 6:
        axis.set_major_locator(ticker.FixedLocator(values))
        axis.set_major_formatter(ticker.StrMethodFormatter('{x:g}'))


def plot(X, Y=None, xlabel=None, ylabel=None, legend=(), xlim=None,
         ylim=None, xscale='linear', yscale='linear', fmts=FMTS,
         figsize=(3.5, 2.5), axes=None):
    """Plot one or more lines.

    X, Y: a line or a list of lines; a single X serves every Y; without Y
    the lines are X over 0, 1, 2, ... ValueError if the numbers of lines
    do not fit together.
    """
    if Y is None:
        lines = [(np.arange(len(y)), y) for y in as_lines(X)]
    else:
        xs, ys = as_lines(X), as_lines(Y)
        if len(xs) not in (1, len(ys)):
            raise ValueError(f'{len(xs)} lines in X, {len(ys)} in Y')
        lines = list(zip(xs * len(ys) if len(xs) == 1 else xs, ys,
                         strict=True))
    if axes is None:
        set_figsize(figsize)
        axes = plt.subplots()[1]
    axes.cla()
    for i, (x, y) in enumerate(lines):
        axes.plot(x, y, fmts[i % len(fmts)], markersize=3, linewidth=1)
    axes.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale=yscale,
             xlim=xlim, ylim=ylim)
    for which, scale in (('x', xscale), ('y', yscale)):
        if scale == 'log':
            label_log_ticks(axes, which, np.unique(np.concatenate(
                [line[which == 'y'] for line in lines])))
    if len(legend) > 4:  # beside the axes, where it hides no line
        axes.legend(legend, fontsize='small', loc='center left',
                    bbox_to_anchor=(1, 0.5))
    elif legend:
        axes.legend(legend)
    axes.grid(alpha=0.4)


def show_bars(names, values, xlabel, line=None, line_label=None,
              figsize=(4.5, 2.2)):
    """Draw a bar for each name, from top to bottom; returns the axes.

    line: a value to mark across all bars. ValueError if there are not as
    many values as names.
    """
    if len(names) != len(values):
        raise ValueError(f'{len(names)} names for {len(values)} values')
    set_figsize(figsize)
    axes = plt.figure().gca()
    bars = axes.barh(names, values, color='0.7')
    axes.bar_label(bars, fmt='{:.3g}', padding=3)
    if line is not None:
        axes.axvline(line, ls='--', color='k', label=line_label)
        axes.legend()
    axes.invert_yaxis()  # the first name stands above
    axes.margins(x=0.15)
    axes.set_xlabel(xlabel)
    return axes


def show_heatmaps(matrices, xlabel, ylabel, titles=None, figsize=(2.5, 2.5),
                  cmap='Reds', norm=None):
    """Show a grid of matrices as shades, with one bar for their values.

    matrices: (rows, columns, height, width); titles: one per column; norm:
    None, or a matplotlib norm such as 'log' by name. ValueError unless
    there are four axes.
    """
    matrices = np.asarray(matrices)
    if matrices.ndim != 4:
        raise ValueError(f'matrices: shape {matrices.shape}, expected (rows, '
                         'columns, height, width)')
    use_svg_display()
    shades = cm.ScalarMappable(norm, cmap)  # the same for all matrices
    shades.set_array(matrices.ravel())
    shades.autoscale_None()
    rows, columns = matrices.shape[:2]
    figure, axes = plt.subplots(rows, columns, figsize=figsize, sharex=True,
                                sharey=True, squeeze=False,
                                layout='constrained')
    for row, row_axes in zip(matrices, axes, strict=True):
        for j, (matrix, one) in enumerate(zip(row, row_axes, strict=True)):
            one.imshow(matrix, cmap=cmap, norm=shades.norm)
            if one in axes[-1]:
                one.set_xlabel(xlabel)
            if j == 0:
                one.set_ylabel(ylabel)
            if titles:
                one.set_title(titles[j])
    figure.colorbar(shades, ax=axes, shrink=0.6)
