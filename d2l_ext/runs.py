"""The labels of a run: which sizes, which text, which checkpoint.

A printed number is true for a run, not in general, so the first cell of
each notebook shows the labels and each output block says which it needs.
"""

import os
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

from . import hub

# label -> (variable that sets it, values)
LABELS = {
    'profile': ('D2L_PROFILE', ('small', 'full')),
    'text': ('D2L_TEXT', ('timemachine', 'sotu1898')),
    'checkpoint': ('D2L_CHECKPOINT', ('gpt2', 'smollm2')),
}

# the stand-in alone is shorter than the novel, so the next year's follows
TEXT_ASSETS = {'timemachine': ('timemachine',),
               'sotu1898': ('sotu1898', 'sotu1899')}

latest = None  # the run this process shows its reader, for the notebook runner


@dataclass(frozen=True)
class Run:
    profile: str
    text: str
    checkpoint: str

    def __str__(self):
        return (f'run: profile {self.profile}, text {self.text}, '
                f'checkpoint {self.checkpoint}')


def chosen(label):
    """The value the reader set for a label, or None.

    ValueError for a value that the label does not have.
    """
    variable, values = LABELS[label]
    value = os.environ.get(variable) or None
    if value is not None and value not in values:
        raise ValueError(f'{variable}={value!r}: expected one of '
                         f'{", ".join(values)}')
    return value


def default_text():
    """The Time Machine if it can be had, else the stand-in address.

    A copy on this machine goes before the network, so that a run without a
    network starts at once and two runs in a row use the same text.
    """
    for text, assets in TEXT_ASSETS.items():
        if all(map(hub.find, assets)):
            return text
    try:
        hub.fetch('timemachine')
        return 'timemachine'
    except OSError as first:  # no network, or the server lacks it
        try:
            for asset in TEXT_ASSETS['sotu1898']:
                hub.fetch(asset)
        except OSError as second:
            raise FileNotFoundError(f'{first}\n\nNor its stand-in: {second}'
                                    ) from second
        return 'sotu1898'


def text():
    """The label of this run's text, chosen once per process."""
    return (latest or current()).text


def checkpoint():
    """The label of this run's checkpoint, chosen once per process."""
    return (latest or current()).checkpoint


def default_checkpoint():
    """GPT-2 if its weights lie on this machine, else SmolLM2."""
    return 'gpt2' if hub.find('gpt2-weights') else 'smollm2'


def current(has_gpu=False):
    """The labels of this run: as the variables say, else by default."""
    global latest
    for label in LABELS:  # a bad value is refused before anything is fetched
        chosen(label)
    latest = Run(chosen('profile') or ('full' if has_gpu else 'small'),
                 chosen('text') or default_text(),
                 chosen('checkpoint') or default_checkpoint())
    return latest


def resident_bytes():
    """Main memory that this process holds now, in bytes."""
    return psutil.Process().memory_info().rss


def peak_bytes():
    """Peak resident memory of this process in bytes; None if unknown."""
    status = Path('/proc/self/status')
    if status.exists():  # getrusage would count the parent's peak here
        for line in status.read_text().splitlines():
            if line.startswith('VmHWM:'):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return getattr(psutil.Process().memory_info(), 'peak_wset', None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else peak * 1024


def report():
    """What the notebook runner asks a kernel when the last cell has run."""
    return {'labels': list(astuple(latest or current())),
            'peak_bytes': peak_bytes()}


def interactive():
    """Whether someone watches: a notebook or terminal, not a headless run."""
    if os.environ.get('D2L_HEADLESS') or os.environ.get('PYTEST_CURRENT_TEST'):
        return False
    if 'ipykernel' not in sys.modules:
        return sys.stdout.isatty()
    from IPython import get_ipython
    # a kernel that may not ask for input is run by a program
    kernel = getattr(get_ipython(), 'kernel', None)
    return getattr(kernel, '_allow_stdin', True)
