"""What a model's weights and cache take of a card, to turn and to print."""

import html
import io
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec

from matplotlib.figure import Figure

from . import runs
from .catalogue import CARDS, GIB, MODELS
from .checks import check_choice, check_sizes
from .formulas import kept_tokens
from .utils import format_bytes, print_wrapped

DTYPES = {'fp32': 4, 'bf16': 2, 'fp8': 1}  # bytes, of weights and cache
ROTARY_DIM = 64  # beside a latent in a model that has none of its own


@dataclass(frozen=True)
class CacheReport:
    """Bytes of weights and cache against the memory of a card.

    name: the model, what was set otherwise, the type; kept: tokens cached
    per sequence; cache: of the whole batch; sequences: how many of that
    context fit beside the weights; lines: all of it in words.
    """

    name: str
    card: str
    context: int
    max_context: int
    kept: int
    batch: int
    weights: int
    per_token: int
    cache: int
    capacity: int
    sequences: int

    @property
    def total(self):
        return self.weights + self.cache

    @property
    def fits(self):
        return self.total <= self.capacity

    @property
    def lines(self):
        size = {name: format_bytes(getattr(self, name)) for name in (
            'weights', 'per_token', 'cache', 'total', 'capacity')}
        kept = f' ({self.kept} kept)' if self.kept < self.context else ''
        lines = [
            f'{self.name}, {self.card}: weights {size["weights"]}, '
            f'{size["per_token"]} per token',
            f'context {self.context}{kept}, batch {self.batch}: '
            f'cache {size["cache"]}, total {size["total"]} of '
            f'{size["capacity"]}: {"fits" if self.fits else "does not fit"}',
            f'sequences of {self.context} tokens beside the weights: '
            f'{self.sequences}']
        if self.context > self.max_context:
            lines.append(f'{self.context} tokens are more than the '
                         f'{self.max_context} that the model is made for')
        return lines


def head_counts(model):
    """Key-value heads that a model's query heads can share evenly."""
    heads = MODELS[model].num_heads
    return [g for g in range(1, heads + 1) if heads % g == 0]


def cache_report(model='Llama-3-8B', context=8192, batch=1, kv_heads=None,
                 dtype='bf16', latent=None, window=None, sinks=0,
                 card='RTX 4090'):
    """A CacheReport; arguments as for explore_cache.

    Leaves out activations, and that fewer heads or a latent change the
    number of weights too. ValueError that names the argument.
    """
    for name, value, table in (('model', model, MODELS),
                               ('dtype', dtype, DTYPES),
                               ('card', card, CARDS)):
        check_choice(name, value, tuple(table))
    context, batch = check_sizes(context=context, batch=batch)
    given = dict(kv_heads=kv_heads, latent=latent, window=window)
    given = {name: n for name, n in given.items() if n is not None}
    check_sizes(**given)
    config, itemsize, memory = MODELS[model], DTYPES[dtype], CARDS[card].memory
    if 'kv_heads' in given and 'latent' in given:
        raise ValueError(f'kv_heads={kv_heads} and latent={latent}: a latent '
                         'stands for the heads, so give one of them')
    if 'kv_heads' in given:
        check_choice('kv_heads', kv_heads, head_counts(model))
        config = replace(config, num_kv_heads=kv_heads, latent_dim=None)
    if 'latent' in given:
        config = replace(config, latent_dim=latent,
                         rotary_dim=config.rotary_dim or ROTARY_DIM)
    if 'window' in given:
        config = replace(config, window=window)
    one = config.cache_bytes(context, 1, itemsize, sinks)
    weights = config.weight_bytes(itemsize)
    settings = [f'{name}={n}' for name, n in (given | dict(
        sinks=sinks)).items() if n]
    return CacheReport(
        ', '.join([model, *settings, dtype]), card, context,
        config.max_context, kept_tokens(context, config.window, sinks), batch,
        weights, config.bytes_per_token(itemsize), batch * one, memory,
        sequences=max(0, memory - weights) // one)


def draw_report(report):
    """One bar, weights and cache, against the card's memory; a Figure.

    Made without pyplot, which would show it once more.
    """
    figure = Figure(figsize=(6, 1.5), layout='constrained')
    axes, left, handles = figure.subplots(), 0, []
    for name, size, hatch, color in (
            ('weights', report.weights, '//', 'lightsteelblue'),
            ('cache', report.cache, 'xx', 'moccasin')):
        handles.append(axes.barh(
            0, size / GIB, left=left / GIB, hatch=hatch, color=color,
            edgecolor='black', label=f'{name} {format_bytes(size)}'))
        left += size
    handles.append(axes.axvline(
        report.capacity / GIB, color='black', linestyle='--', linewidth=2,
        label=f'{report.card} {format_bytes(report.capacity)}'))
    axes.set(xlabel='memory (GiB)', yticks=[],
             xlim=(0, 1.05 * max(report.total, report.capacity) / GIB))
    figure.legend(handles=handles, loc='outside upper center', ncols=3)
    return figure


def as_svg(figure):
    """The <svg> element of a figure, to stand within a page."""
    stream = io.StringIO()
    figure.savefig(stream, format='svg')
    return stream.getvalue()[stream.getvalue().index('<svg'):]


def as_html(**arguments):
    """Lines and bar of a report, or what is wrong with the arguments."""
    try:
        report = cache_report(**arguments)
    except ValueError as error:
        return f'<p role="alert">{html.escape(str(error))}</p>'
    lines = [html.escape(line) for line in report.lines]
    return (f'<p>{"<br>".join(lines)}</p><div role="img" aria-label='
            f'"{lines[1]}">{as_svg(draw_report(report))}</div>')


def cache_controls(**start):
    """A box of ipywidgets: controls, and HTML that follows them.

    start: all arguments of explore_cache.
    """
    import ipywidgets as widgets

    def powers(last, value):
        return sorted({2**k for k in range(last + 1)} | {value})

    def heads(model):
        return [('own', None), *((str(g), g) for g in head_counts(model))]

    controls = {
        'model': widgets.Dropdown(options=[*MODELS]),
        'dtype': widgets.Dropdown(options=[*DTYPES]),
        'card': widgets.Dropdown(options=[*CARDS]),
        'context': widgets.SelectionSlider(
            options=powers(20, start['context'])),
        'batch': widgets.SelectionSlider(options=powers(10, start['batch'])),
        'kv_heads': widgets.Dropdown(options=heads(start['model'])),
        # a number field cannot be empty, so 0 stands for None
        'latent': widgets.IntText(description='latent (0: own)'),
        'window': widgets.IntText(description='window (0: own)'),
        'sinks': widgets.IntText()}
    shown = widgets.HTML()

    def update(change=None):
        values = {name: c.value or None for name, c in controls.items()}
        shown.value = as_html(**values | {'sinks': controls['sinks'].value})

    def offer_heads(change):
        controls['kv_heads'].options = heads(change['new'])

    # first, so that no other model meets heads that are not its own
    controls['model'].observe(offer_heads, 'value')
    for name, control in controls.items():
        control.description = control.description or name
        control.style.description_width = '7em'
        if start[name] is not None:
            control.value = start[name]
        control.observe(update, 'value')
    update()
    return widgets.VBox([widgets.GridBox([*controls.values()], layout={
        'grid_template_columns': 'repeat(auto-fit, minmax(20em, 1fr))'}),
        shown])


def explore_cache(model='Llama-3-8B', context=8192, batch=1, kv_heads=None,
                  dtype='bf16', latent=None, window=None, sinks=0,
                  card='RTX 4090'):
    """Show what weights and cache take of a card, with controls to turn.

    model, card: names in MODELS and CARDS; context: tokens per sequence;
    dtype: 'fp32', 'bf16' or 'fp8', of weights and cache; kv_heads, latent,
    window: None for the model's own, kv_heads also in place of its latent.
    Where nobody watches, lines of numbers and one figure. ValueError as
    for cache_report.
    """
    arguments = dict(locals())
    report = cache_report(**arguments)
    has_front_end = 'ipykernel' in sys.modules  # a terminal shows only text
    if has_front_end:
        from IPython.display import SVG, display
        if runs.interactive() and find_spec('ipywidgets'):
            display(cache_controls(**arguments))
            return
    for line in report.lines:
        print_wrapped(line)
    if has_front_end:
        display(SVG(as_svg(draw_report(report))))
