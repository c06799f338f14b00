"""The book's namespace in PyTorch: `from d2l_ext import torch as d2l`."""

from ..common import *
from .attention import *
from .block import *
from .data import *
from .device import *
from .gpt import *
from .memory import *
from .pretrained import *
from .sampling import *
from .train import *
from .weights import *

# last: what the notebooks save builds on all of the above
# isort: split
from .cached_gqa import *
from .saved import *
from .trials import *

__all__ = sorted(name for name, value in globals().items()
                 if not name.startswith('_') and hasattr(value, '__doc__')
                 and type(value).__name__ != 'module')
