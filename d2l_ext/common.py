"""The part of the book's namespace that needs no framework."""

from .catalogue import CARDS, MODELS
from .checks import (
    check_counts,
    check_kv_heads,
    check_prompt,
    check_room,
    check_same,
    check_sampling,
    check_sizes,
)
from .exercises import attempt, exercises, hint
from .explorer import explore_cache
from .formulas import (
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
    state_bytes,
)
from .hub import DATA_HUB, DATA_URL, download
from .plotting import (
    plot,
    set_figsize,
    show_bars,
    show_heatmaps,
    use_svg_display,
)
from .text import GPT2_PATTERN, BPETokenizer, Vocab, read_text
from .utils import (
    HyperParameters,
    add_to_class,
    check_shape,
    format_bytes,
    print_table,
    print_wrapped,
)
