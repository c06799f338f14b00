"""The book's namespace in PyTorch: `from d2l_ext import torch as d2l`."""

from ..catalogue import CARDS, MODELS
from ..checks import (
    check_kv_heads,
    check_prompt,
    check_room,
    check_same,
    check_sampling,
)
from ..explorer import explore_cache
from ..formulas import (
    attainable,
    attention_flops,
    break_even_context,
    bytes_moved,
    cache_bytes,
    dense_flops,
    intensity,
    latent_cache_bytes,
    ridge,
    roofline_seconds,
)
from ..hub import DATA_HUB, DATA_URL, download
from ..plotting import plot, set_figsize, use_svg_display
from ..text import GPT2_PATTERN, BPETokenizer, Vocab
from ..utils import (
    HyperParameters,
    add_to_class,
    check_shape,
    format_bytes,
    print_wrapped,
)
from .attention import *
from .block import *
from .data import *
from .device import *
from .gpt import *
from .memory import *
from .sampling import *
from .train import *
from .weights import *

# last: what the notebooks save builds on all of the above
# isort: split
from .cached_gqa import *
from .saved import *

__all__ = sorted(name for name, value in globals().items()
                 if not name.startswith('_') and hasattr(value, '__doc__')
                 and type(value).__name__ != 'module')
