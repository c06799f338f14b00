"""The arithmetic of generation: bytes of a cache, FLOPs, the roofline.

Counts are exact ints, so they hold for any model. ValueError, naming the
argument, for a count that is no whole number, a rate that is not finite, and
whatever is not above 0, or below 0 where 0 has a meaning.
"""

from .checks import check_counts, check_positive, check_sizes


def kept_tokens(n: int, window: int | None = None, sinks: int = 0) -> int:
    """Tokens per sequence that a cache still holds after n.

    window: latest tokens that stay, the current one included, None for all;
    sinks: first tokens that stay too. ValueError for sinks without a window.
    Source: D2L 11.3, attention sinks.
    """
    [n], [sinks] = check_sizes(n=n), check_counts(sinks=sinks)
    if window is None:
        if sinks:
            raise ValueError(f'sinks={sinks}: without a window every token '
                             'stays, so give a window too')
        return n
    [window] = check_sizes(window=window)
    return min(n, window + sinks)


def cache_bytes(num_blks: int, num_kv_heads: int, head_dim: int, n: int,
                batch: int = 1, itemsize: int = 4,
                window: int | None = None, sinks: int = 0) -> int:
    """Bytes of the keys and values cached for `batch` sequences of n tokens.

    num_kv_heads: key-value heads, not query heads; itemsize: bytes per
    element; window, sinks: see kept_tokens. Leaves out what a buffer or an
    allocator holds beyond the tokens kept. Source: D2L 11.3, cache size.
    """
    num_blks, num_kv_heads, head_dim, batch, itemsize = check_sizes(
        num_blks=num_blks, num_kv_heads=num_kv_heads, head_dim=head_dim,
        batch=batch, itemsize=itemsize)
    return (2 * num_blks * num_kv_heads * head_dim
            * kept_tokens(n, window, sinks) * batch * itemsize)


def latent_cache_bytes(num_blks: int, latent_dim: int, rotary_dim: int,
                       n: int, batch: int = 1, itemsize: int = 4,
                       window: int | None = None, sinks: int = 0) -> int:
    """Bytes cached by multi-head latent attention, as for cache_bytes.

    Per token and block one latent of latent_dim, from which keys and values
    of all heads follow, and a rotary key part of rotary_dim that all heads
    share (0 for none). Leaves out the same. Source: D2L 11.3, low rank.
    """
    num_blks, latent_dim, batch, itemsize = check_sizes(
        num_blks=num_blks, latent_dim=latent_dim, batch=batch,
        itemsize=itemsize)
    [rotary_dim] = check_counts(rotary_dim=rotary_dim)
    return (num_blks * (latent_dim + rotary_dim)
            * kept_tokens(n, window, sinks) * batch * itemsize)


def state_bytes(num_blks: int, num_heads: int, head_dim: int,
                batch: int = 1, itemsize: int = 4) -> int:
    """Bytes of the state that linear attention keeps in place of a cache.

    Per head a matrix, the sum of outer products of features and values, and
    the sum of the features; as many features as head_dim. The same after
    any number of tokens. Source: D2L 11.3, comparison of methods.
    """
    num_blks, num_heads, head_dim, batch, itemsize = check_sizes(
        num_blks=num_blks, num_heads=num_heads, head_dim=head_dim,
        batch=batch, itemsize=itemsize)
    return num_blks * num_heads * head_dim * (head_dim + 1) * batch * itemsize


def dense_flops(num_params: int, num_tokens: int) -> int:
    """FLOPs of one pass over num_tokens new tokens, all sequences together.

    One multiplication and one addition per parameter and token. Leaves out
    attention's products of activations, see attention_flops; counts an
    embedding as the output head, so one that is not tied is one too many.
    Source: D2L 11.3, cost of generation.
    """
    num_params, num_tokens = check_sizes(num_params=num_params,
                                         num_tokens=num_tokens)
    return 2 * num_params * num_tokens


def attention_flops(num_blks: int, num_heads: int, head_dim: int, new: int,
                    cached: int = 0) -> int:
    """FLOPs of scores and weighted sums for `new` tokens of one sequence.

    num_heads: query heads, shared keys and values or not; each new token
    attends to the `cached` earlier ones, the new ones before it, and itself.
    Leaves out the softmax, and the half that a kernel wastes if it computes
    scores before it masks them. Source: D2L 11.3, exercises.
    """
    num_blks, num_heads, head_dim, new = check_sizes(
        num_blks=num_blks, num_heads=num_heads, head_dim=head_dim, new=new)
    [cached] = check_counts(cached=cached)
    pairs = new * cached + new * (new + 1) // 2
    return 4 * num_blks * num_heads * head_dim * pairs


def bytes_moved(num_params: int, itemsize: int = 4, cache: int = 0) -> int:
    """Bytes read by one pass: every weight once, `cache` bytes once.

    Leaves out activations and the new rows that are written.
    Source: D2L 11.3, arithmetic intensity.
    """
    num_params, itemsize = check_sizes(num_params=num_params,
                                       itemsize=itemsize)
    [cache] = check_counts(cache=cache)
    return num_params * itemsize + cache


def intensity(flops: float, num_bytes: float) -> float:
    """Arithmetic intensity of a computation in FLOP/byte.

    Source: D2L 11.3, arithmetic intensity.
    """
    flops, num_bytes = check_positive(flops=flops, num_bytes=num_bytes)
    return flops / num_bytes


def ridge(flop_rate: float, bandwidth: float) -> float:
    """FLOP/byte from which on a machine is bound by arithmetic, not reads.

    flop_rate: FLOP/s; bandwidth: bytes/s. Source: D2L 11.3, roofline.
    """
    flop_rate, bandwidth = check_positive(flop_rate=flop_rate,
                                          bandwidth=bandwidth)
    return flop_rate / bandwidth


def roofline_seconds(flops: float, num_bytes: float, flop_rate: float,
                     bandwidth: float) -> float:
    """Least seconds for that many FLOPs and bytes: the slower of the two.

    flop_rate: FLOP/s; bandwidth: bytes/s. Leaves out launch overhead and
    whatever of arithmetic and reads does not overlap. Source: D2L 11.3,
    roofline.
    """
    flops, num_bytes, flop_rate, bandwidth = check_positive(
        flops=flops, num_bytes=num_bytes, flop_rate=flop_rate,
        bandwidth=bandwidth)
    return max(flops / flop_rate, num_bytes / bandwidth)


def attainable(intensity: float, flop_rate: float,
               bandwidth: float) -> float:
    """The roofline: most FLOP/s that a computation of an intensity reaches.

    intensity: FLOP/byte; flop_rate: FLOP/s; bandwidth: bytes/s.
    Source: D2L 11.3, roofline.
    """
    intensity, flop_rate, bandwidth = check_positive(
        intensity=intensity, flop_rate=flop_rate, bandwidth=bandwidth)
    return min(flop_rate, intensity * bandwidth)


def break_even_context(weight_bytes: int, bytes_per_token: int) -> int:
    """Smallest number of tokens whose cache is as large as the weights.

    Both in bytes; all sequences together count as one. Leaves out windows,
    with which a cache may never get there. Source: D2L 11.3, exercises.
    """
    weight_bytes, bytes_per_token = check_sizes(
        weight_bytes=weight_bytes, bytes_per_token=bytes_per_token)
    return -(-weight_bytes // bytes_per_token)
