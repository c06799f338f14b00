"""Small helpers the book uses everywhere; no framework needed."""

import contextlib
import inspect
import itertools
import signal
import textwrap
import threading
from numbers import Real

from .checks import is_finite


class HyperParameters:
    """Base class whose constructors keep their arguments as attributes."""

    def save_hyperparameters(self, ignore=()):
        """Keep each argument of the calling `__init__` on the instance.

        ignore: names that are not kept. All kept ones also stand in the
        dict `hparams`.
        """
        caller = inspect.currentframe().f_back
        names, varargs, keywords, values = inspect.getargvalues(caller)
        arguments = {name: values[name] for name in names[1:]}
        if keywords:
            arguments |= values[keywords]
        self.hparams = {name: value for name, value in arguments.items()
                        if name not in ignore}
        for name, value in self.hparams.items():
            setattr(self, name, value)


def add_to_class(cls):
    """Decorator: make a function a method of `cls`; returns the function.

    Objects that exist already get the method too, so a class can grow over
    several cells.
    """
    def attach(function):
        setattr(cls, function.__name__, function)
        return function
    return attach


def check_shape(array, shape):
    """Raise ValueError unless `array` has exactly this shape."""
    if tuple(array.shape) != tuple(shape):
        raise ValueError(f'shape {tuple(array.shape)}, '
                         f'expected {tuple(shape)}')


def print_wrapped(*args, width=76):
    """Print like `print`, long lines broken at blanks, indented by 4."""
    for line in ' '.join(map(str, args)).split('\n'):
        print(textwrap.fill(line, width, subsequent_indent=' ' * 4))


def print_table(header, rows, widths):
    """Print rows of cells in columns, long cells broken at blanks.

    widths: characters of each column. ValueError for a row of another
    length.
    """
    for row in (header, ['-' * width for width in widths], *rows):
        if len(row) != len(widths):
            raise ValueError(f'a row of {len(row)} cells, expected '
                             f'{len(widths)}: {row}')
        cells = [textwrap.wrap(str(cell), width, break_on_hyphens=False)
                 for cell, width in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*cells, fillvalue=''):
            print('  '.join(cell.ljust(width) for cell, width in zip(
                line, widths, strict=True)).rstrip())


def format_bytes(n):
    """A number of bytes in binary units: '512 B', '72.0 KiB', '1.2 GiB'.

    ValueError unless n is a finite number, 0 or more.
    """
    if (isinstance(n, bool) or not isinstance(n, Real)
            or not is_finite(n) or n < 0):
        raise ValueError(f'n={n!r}: expected a finite number of bytes, '
                         '0 or more')
    if n < 1024:
        return f'{n:g} B'
    units = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB']
    n /= 1024
    while len(units) > 1 and round(n, 1) >= 1024:
        n, units = n / 1024, units[1:]
    return f'{n:.1f} {units[0]}'


@contextlib.contextmanager
def interrupts_deferred():
    """Hold a Ctrl-C back until the block is done, then raise it.

    A training step is whole or not begun. Other threads get no Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = []
    before = signal.signal(signal.SIGINT, lambda *args: held.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


def progress(steps, label=''):
    """Iterate over `steps`, with a bar only where someone watches it."""
    from tqdm.auto import tqdm

    from . import runs
    return tqdm(steps, desc=label, leave=False,
                disable=not runs.interactive())
