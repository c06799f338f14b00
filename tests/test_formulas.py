"""The arithmetic of generation against cases worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2l_ext import formulas as f

COUNTS = st.integers(1, 10**4)
GPT2_PARAMS = 123_551_232  # the book's GPT, 12 blocks of 12 heads of 64

# every function with arguments that it accepts, all of them by name
CALLS = {
    f.cache_bytes: dict(num_blks=3, num_kv_heads=5, head_dim=7, n=11,
                        batch=13, itemsize=2, window=4, sinks=1),
    f.latent_cache_bytes: dict(num_blks=3, latent_dim=5, rotary_dim=7, n=11,
                               batch=13, itemsize=2, window=4, sinks=1),
    f.state_bytes: dict(num_blks=3, num_heads=5, head_dim=7, batch=13,
                        itemsize=2),
    f.dense_flops: dict(num_params=17, num_tokens=5),
    f.attention_flops: dict(num_blks=3, num_heads=5, head_dim=7, new=2,
                            cached=11),
    f.bytes_moved: dict(num_params=17, itemsize=2, cache=5),
    f.break_even_context: dict(weight_bytes=17, bytes_per_token=5),
    f.intensity: dict(flops=17, num_bytes=5),
    f.ridge: dict(flop_rate=17, bandwidth=5),
    f.roofline_seconds: dict(flops=17, num_bytes=5, flop_rate=3,
                             bandwidth=2),
    f.attainable: dict(intensity=17, flop_rate=3, bandwidth=2),
}
RATES = {f.intensity, f.ridge, f.roofline_seconds, f.attainable}
MAY_BE_ZERO = {'sinks', 'rotary_dim', 'cached', 'cache'}
ARGUMENTS = [pytest.param(function, name, id=f'{function.__name__}-{name}')
             for function, arguments in CALLS.items() for name in arguments]


def test_a_cache_holds_a_key_and_a_value_per_block_head_and_token():
    """Distinct primes, so no factor can stand in for another."""
    assert f.cache_bytes(3, 5, 7, 11, 13, 2) == 2 * 3 * 5 * 7 * 11 * 13 * 2
    assert f.cache_bytes(3, 5, 7, 11) == 2 * 3 * 5 * 7 * 11 * 4


def test_a_latent_cache_holds_one_latent_and_one_rotary_part():
    """One for keys and values together, so no factor of 2."""
    assert f.latent_cache_bytes(3, 5, 2, 11, 13, 8) == 3 * 7 * 11 * 13 * 8
    assert f.latent_cache_bytes(3, 5, 0, 11) == 3 * 5 * 11 * 4


def test_a_state_holds_a_matrix_and_a_sum_of_features_per_head():
    """7 features times 7 values, and 7 sums; no number of tokens."""
    assert f.state_bytes(3, 5, 7, 13, 2) == 3 * 5 * (7 * 7 + 7) * 13 * 2
    assert f.state_bytes(3, 5, 7) == 3 * 5 * 56 * 4


def test_a_state_is_a_cache_of_half_a_head_width_of_tokens():
    """(hd + 1) / 2 tokens, so a longer context is cheaper as a state."""
    for hd in (7, 63, 127):
        assert f.state_bytes(3, 5, hd) == f.cache_bytes(
            3, 5, hd, (hd + 1) // 2)


@pytest.mark.parametrize('n, kept', [(1, 1), (6, 6), (7, 7), (8, 7),
                                     (999, 7)])
def test_a_window_and_its_sinks_bound_what_is_kept(n, kept):
    """Up to window + sinks tokens nothing is evicted."""
    assert f.kept_tokens(n, window=5, sinks=2) == kept
    assert f.kept_tokens(n) == n
    assert f.cache_bytes(3, 5, 7, n, window=5, sinks=2) == f.cache_bytes(
        3, 5, 7, kept)
    assert f.latent_cache_bytes(3, 5, 2, n, window=5, sinks=2) == (
        f.latent_cache_bytes(3, 5, 2, kept))


def test_published_cache_sizes():
    assert f.cache_bytes(12, 12, 64, 1) == 72 * 2**10
    assert f.cache_bytes(12, 12, 64, 4096) == 288 * 2**20
    assert f.cache_bytes(80, 8, 128, 1, itemsize=2) == 320 * 2**10
    assert [f.cache_bytes(1, heads, 32, 1) for heads in (8, 4, 2, 1)] == [
        2048, 1024, 512, 256]
    assert f.latent_cache_bytes(1, 512, 64, 1, itemsize=1) == 576


def test_attention_counts_each_pair_four_times_per_element():
    """2 new tokens after 11: 12 + 13 pairs; per pair and element a product
    and a sum in the score, and again in the weighted sum of values."""
    assert f.attention_flops(3, 5, 7, 2, 11) == 4 * 3 * 5 * 7 * (12 + 13)
    assert f.attention_flops(3, 5, 7, 2) == 4 * 3 * 5 * 7 * (1 + 2)


@given(st.lists(COUNTS, min_size=1, max_size=6), st.integers(0, 10**4))
def test_any_split_of_a_prompt_costs_the_same(chunks, cached):
    whole = f.attention_flops(3, 5, 7, sum(chunks), cached)
    parts = sum(f.attention_flops(3, 5, 7, new, cached + sum(chunks[:i]))
                for i, new in enumerate(chunks))
    assert parts == whole
    assert sum(f.dense_flops(17, new) for new in chunks) == f.dense_flops(
        17, sum(chunks))


def test_published_roofline():
    """A step after 2048 tokens, fp32, and the prefill of those 2048."""
    moved = f.bytes_moved(GPT2_PARAMS, 4, f.cache_bytes(12, 12, 64, 2048))
    step, prefill = (f.dense_flops(GPT2_PARAMS, t) for t in (1, 2048))
    assert (round(step / 1e6), round(moved / 1e6)) == (247, 645)
    assert round(f.intensity(step, moved), 1) == 0.4
    assert round(f.intensity(prefill, moved)) == 784
    assert round(1 / f.roofline_seconds(step, moved, 83e12, 1e12)) == 1550
    assert f.ridge(83e12, 1e12) == 83


def test_a_pass_reads_weights_and_cache_once():
    assert f.bytes_moved(17, 2, 5) == 39
    assert f.bytes_moved(17) == 68


def test_the_slower_of_arithmetic_and_reads_decides():
    assert f.roofline_seconds(30, 4, 3, 2) == 10
    assert f.roofline_seconds(3, 40, 3, 2) == 20
    assert f.attainable(1.25, 3, 2) == 2.5
    assert f.attainable(2, 3, 2) == 3
    assert f.intensity(5, 2) == 2.5 and f.ridge(5, 2) == 2.5


@given(*[st.floats(1e-3, 1e15)] * 4)
def test_time_is_flops_over_the_attainable_rate(flops, size, rate, width):
    """The two faces of the roofline agree."""
    assert f.roofline_seconds(flops, size, rate, width) == pytest.approx(
        flops / f.attainable(f.intensity(flops, size), rate, width))


@given(COUNTS, COUNTS)
def test_break_even_is_the_first_context_with_enough(weights, per_token):
    n = f.break_even_context(weights, per_token)
    assert (n - 1) * per_token < weights <= n * per_token


@pytest.mark.parametrize('function, name', ARGUMENTS)
def test_each_bad_argument_is_named_with_its_value(function, name):
    bad = [-1, True, '3', float('nan'), float('inf'), [3], 1j]
    bad += [] if name in MAY_BE_ZERO else [0]
    bad += [0.0] if function in RATES else [3.0]
    bad += [] if name == 'window' else [None]
    for value in bad:
        with pytest.raises(ValueError) as error:
            function(**CALLS[function] | {name: value})
        assert str(error.value).startswith(f'{name}={value!r}: expected')


def test_zero_is_taken_where_it_has_a_meaning():
    assert f.kept_tokens(11, 4, 0) == 4
    assert f.latent_cache_bytes(3, 5, 0, 11) == 3 * 5 * 11 * 4
    assert f.attention_flops(3, 5, 7, 2, 0) == 4 * 3 * 5 * 7 * 3
    assert f.bytes_moved(17, 2, 0) == 34


def test_sinks_without_a_window_are_refused():
    for function in (f.cache_bytes, f.latent_cache_bytes):
        with pytest.raises(ValueError, match='sinks=2: without a window'):
            function(3, 5, 7, 11, sinks=2)


@pytest.mark.parametrize('function', CALLS)
def test_numpys_numbers_are_taken_and_never_wrap_around(function):
    """int8 holds up to 127; what comes back is Python's own."""
    plain = function(**CALLS[function])
    result = function(**{name: np.int8(value) for name, value
                         in CALLS[function].items()})
    assert result == plain
    assert type(result) is (float if function in RATES else int)


def test_rates_of_any_float_are_python_floats():
    assert type(f.ridge(np.float32(3), np.float64(2))) is float


def test_both_backends_offer_the_formulas(backend):
    for function in CALLS:
        assert getattr(backend.d2l, function.__name__) is function
        assert function.__name__ in backend.d2l.__all__
