"""Laws of grouped-query attention, of the layer and of its cached step.

B batch, T queries, S keys, H query heads, G key-value heads, hd head width
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from backends import BACKENDS
from numpy_model import linear, rotate

from d2l_ext import jax as d2l_jax
from d2l_ext import torch as d2l_torch

B, T, S, H, G, HD = 2, 5, 7, 6, 2, 4
D = H * HD
TOLERANCE = 1e-5


def layer(backend, num_kv_heads=G, **kwargs):
    """A layer whose weights are drawn once, so that both backends agree."""
    gqa = backend.d2l.GQAAttention(D, H, num_kv_heads, **kwargs)
    rng = np.random.default_rng(3)
    shapes = {name: w.shape
              for name, w in sorted(backend.d2l.get_weights(gqa).items())}
    backend.d2l.set_weights(gqa, {
        name: rng.normal(size=shape, scale=0.3).astype(np.float32)
        for name, shape in shapes.items()})
    return gqa


def call(backend, attention, queries, keys, values, valid_lens=None):
    """Attention's answer (B, T, D) as NumPy."""
    args = [backend.array(x) for x in (queries, keys, values)]
    if valid_lens is not None:
        args.append(backend.array(valid_lens))
    if backend.name == 'torch':
        with torch.inference_mode():
            return backend.numpy(attention(*args))
    Y, weights = attention(*args)
    assert weights is None or weights.ndim == 4
    return backend.numpy(Y)


def inputs(T=T, S=S, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(B, T, D)).astype(np.float32),
            *rng.normal(size=(2, B, S, D)).astype(np.float32))


def explicit(backend, gqa, queries, keys, values, valid_lens=None):
    """The definition in NumPy: one head, one query after another."""
    w = backend.d2l.get_weights(gqa)
    q, k, v = (linear(w, f'W_{n}', X) for n, X in zip(
        'qkv', (queries, keys, values), strict=True))
    T, S, shared = q.shape[1], k.shape[1], H // (k.shape[-1] // HD)
    lens = np.full((B, T), S) if valid_lens is None else np.broadcast_to(
        np.reshape(valid_lens, (B, -1)), (B, T))
    out = np.zeros((B, T, D))
    for b, h in np.ndindex(B, H):
        own = slice(h * HD, (h + 1) * HD)
        read = slice(h // shared * HD, (h // shared + 1) * HD)
        qh, kg, vg = q[b, :, own], k[b, :, read], v[b, :, read]
        if gqa.rope:
            qh = rotate(qh, np.arange(S - T, S), gqa.base)
            kg = rotate(kg, np.arange(S), gqa.base)
        for i in range(T):
            last = i + S - T if gqa.causal else S - 1
            n = min(lens[b, i], last + 1)
            if n > 0:
                weight = np.exp(kg[:n] @ qh[i] / np.sqrt(HD))
                out[b, i, own] = weight / weight.sum() @ vg[:n]
    return linear(w, 'W_o', out)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('valid_lens', [
    None, [3, 7], [[1, 2, 3, 4, 5], [7, 0, 7, 1, 6]]],
    ids=['all', 'per sequence', 'per query'])
@pytest.mark.parametrize('T, S', [(5, 7), (7, 5)])
def test_six_heads_on_two_as_in_an_explicit_loop(backend, T, S, causal,
                                                 valid_lens):
    """Both masks apply, the causal one aligned to the end of the keys."""
    gqa = layer(backend, causal=causal)
    lens = valid_lens and np.minimum(valid_lens, S)
    if np.ndim(lens) == 2:
        lens = np.resize(lens, (B, T))
    args = *inputs(T, S), lens
    Y, expected = call(backend, gqa, *args), explicit(backend, gqa, *args)
    error = np.abs(Y - expected).max()
    assert error < TOLERANCE, f'off by {error:.1e}'


@pytest.mark.slow
@pytest.mark.parametrize('num_kv_heads, kwargs', [
    (6, {}), (3, {'rope': True}), (1, {}), (2, {'rope': True, 'base': 100}),
    (2, {'bias': True})], ids=['6', '3 rope', '1', '2 base 100', '2 bias'])
def test_every_divisor_every_option(backend, num_kv_heads, kwargs):
    gqa = layer(backend, num_kv_heads, **kwargs)
    for S in (T, T + 2):
        args = inputs(T, S)
        error = np.abs(call(backend, gqa, *args)
                       - explicit(backend, gqa, *args)).max()
        assert error < TOLERANCE, f'S={S}: off by {error:.1e}'


def test_the_rotary_base_matters(backend):
    """The same weights with another base give another answer."""
    X = inputs(T, T)[0]
    one, other = (call(backend, layer(backend, rope=True, base=base), X, X, X)
                  for base in (10000, 100))
    assert np.abs(one - other).max() > 1e-3


def test_a_row_that_sees_nothing_is_zero_and_leaks_nothing(backend):
    """No nan, and what is masked may change without a trace."""
    gqa = layer(backend, causal=False)
    queries, keys, values = inputs()
    lens = np.array([0, 4])
    Y = call(backend, gqa, queries, keys, values, lens)
    assert np.isfinite(Y).all() and np.abs(Y[0]).max() == 0
    keys[1, 4:], values[1, 4:], keys[0], values[0] = 9, 9, 9, 9
    assert np.array_equal(Y, call(backend, gqa, queries, keys, values, lens))


@pytest.mark.slow
def test_gradients_are_finite_where_rows_see_nothing():
    """Training on padded batches: a masked row must not give nan."""
    X, lens = inputs(T, T)[0], [0, 3]
    gqa = layer(BACKENDS['torch'])
    gqa(*[torch.as_tensor(X)] * 3, torch.tensor(lens)).sum().backward()
    assert all(p.grad.isfinite().all() for p in gqa.parameters())
    grads = jax.grad(lambda gqa: gqa(*[jnp.asarray(X)] * 3, jnp.array(lens))[
        0].sum())(layer(BACKENDS['jax']))
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_all_heads_their_own_is_multi_head_attention(backend):
    """G = H: equal to MultiHeadAttention, with padding, on the weights."""
    gqa = layer(backend, H, causal=False)
    mha = backend.d2l.MultiHeadAttention(D, H, 0)
    mha.eval()
    backend.d2l.set_weights(mha, backend.d2l.get_weights(gqa))
    args = *inputs(), np.array([3, 6])
    error = np.abs(call(backend, gqa, *args)
                   - call(backend, mha, *args)).max()
    assert error < TOLERANCE, f'off by {error:.1e}'


def test_all_heads_their_own_is_causal_attention(backend):
    """G = H: equal to the fused attention of GPT on the same weights."""
    gqa = layer(backend, H, rope=True)
    w = backend.d2l.get_weights(gqa)
    fused = backend.d2l.GPT.CausalAttention(D, H)
    backend.d2l.set_weights(fused, {
        'W_qkv.weight': np.concatenate([w[f'W_{n}.weight'] for n in 'qkv']),
        'W_o.weight': w['W_o.weight']})
    X = inputs(T, T)[0]
    error = np.abs(call(backend, gqa, X, X, X)
                   - call(backend, fused, X, X, X)).max()
    assert error < TOLERANCE, f'off by {error:.1e}'


def test_the_backends_agree_on_the_same_weights():
    args = inputs()
    one, other = (call(b, layer(b, rope=True), *args)
                  for b in BACKENDS.values())
    assert np.abs(one - other).max() < TOLERANCE


@pytest.mark.parametrize('sizes, words', [
    ((24, 6, 4), ('num_heads=6', 'num_kv_heads=4')),
    ((24, 6, 12), ('num_heads=6', 'num_kv_heads=12')),
    ((24, 5, 5), ('num_hiddens=24', 'num_heads=5')),
    ((24, 6, 0), ('num_kv_heads=0',)),
    ((24, 6, 2.0), ('num_kv_heads=2.0',))])
def test_heads_that_do_not_divide_are_refused(backend, sizes, words):
    """With both numbers, before anything is built."""
    with pytest.raises(ValueError) as refused:
        backend.d2l.GQAAttention(*sizes)
    assert all(word in str(refused.value) for word in words)


def test_rope_needs_an_even_head_width(backend):
    with pytest.raises(ValueError, match='head width is 3'):
        backend.d2l.GQAAttention(6, 2, 1, rope=True)


@pytest.mark.slow
def test_parameters_and_bytes_are_the_published_ones(backend):
    """GQAAttention(256, 8, G): parameters; cache bytes per token, fp32."""
    for num_kv_heads, params, size in ((8, 262144, 2048), (4, 196608, 1024),
                                       (2, 163840, 512), (1, 147456, 256)):
        weights = backend.d2l.get_weights(
            backend.d2l.GQAAttention(256, 8, num_kv_heads))
        assert sum(w.size for w in weights.values()) == params
        assert backend.d2l.cache_bytes(1, num_kv_heads, 32, 1) == size


# --- In a block, in a model, with a cache -----------------------------------

V, SLOTS = 31, 16


def gpt(backend, num_kv_heads=G, num_blks=2, **kwargs):
    """A GPT whose blocks have got grouped attention by assignment."""
    model = backend.gpt(V, D, H, num_blks, max_len=SLOTS)
    for blk in model.blks:
        blk.attention = layer(backend, num_kv_heads, rope=True, **kwargs)
    return model


def ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, V, shape)


@pytest.mark.slow
def test_it_drops_into_a_block(backend):
    """As attn_factory; the block adds its answer to the normed input's."""
    def factory(rngs=None):
        return layer(backend, causal=False)
    blk = backend.d2l.TransformerBlock(D, H, attn_factory=factory)
    X, lens = inputs(T, T)[0], np.array([2, 5])
    args = [backend.array(X), backend.array(lens)]
    if backend.name == 'torch':
        with torch.inference_mode():
            Y, Z = blk(*args), blk.before_attention(args[0])
    else:
        Y, Z = blk(*args), blk.before_attention(args[0])
    Z = backend.numpy(Z)
    inner = call(backend, blk.attention, Z, Z, Z, lens)
    expected = blk.after_attention(args[0], backend.array(inner))
    assert np.abs(backend.numpy(Y) - backend.numpy(expected)).max() < TOLERANCE


@pytest.mark.parametrize('num_kv_heads', [3, 1])
@pytest.mark.parametrize('chunks', [[11], [1] * 11, [4, 1, 6]],
                         ids=lambda chunks: '+'.join(map(str, chunks)))
def test_any_split_gives_the_logits_of_a_full_pass(backend, num_kv_heads,
                                                   chunks):
    """Also with a base of its own, and in any order of chunk lengths."""
    model, X = gpt(backend, num_kv_heads, base=50), ids(B, 11)
    full = backend.full(model, X)
    cache, start = backend.empty(model, B, SLOTS), 0
    for n in chunks:
        logits, cache = backend.feed(model, cache, X[:, start:start + n],
                                     start)
        start += n
        error = np.abs(logits - full[:, start - 1]).max()
        assert error < TOLERANCE, f'after {start}: off by {error:.1e}'


def test_the_cache_holds_the_shared_heads_only(backend):
    model = gpt(backend)
    _, cache = backend.feed(model, backend.empty(model, B, T), ids(B, T), 0)
    k, v = backend.cached(cache, T)
    assert k.shape == v.shape == (2, B, T, G, HD)
    arrays = (cache if backend.name == 'jax'
              else [x for c in cache for x in c.values()])
    assert backend.d2l.held_bytes(arrays) == backend.d2l.cache_bytes(
        2, G, HD, T, B)


@pytest.mark.slow
def test_both_loops_write_the_same(backend):
    """Greedy ids with the cache are those without."""
    model = gpt(backend)
    naive, cached = (backend.generate(model, method, [3, 1, 4], 9,
                                      temperature=0)
                     for method in ('generate', 'generate_cached'))
    assert naive == cached and len(cached) == 12


def test_a_step_that_is_not_causal_is_refused(backend):
    model = gpt(backend, causal=False)
    with pytest.raises(ValueError, match='causal=False'):
        backend.feed(model, backend.empty(model, B, T), ids(B, 1), 0)


def test_a_torch_step_never_repeats_a_head():
    """Beyond the grown cache it makes less than one more copy of it."""
    S, wide = 512, 96
    gqa = d2l_torch.GQAAttention(wide, 12, 1, rope=True)
    rows = {name: torch.randn(B, 1, S, wide // 12) for name in 'kv'}
    size = d2l_torch.cache_bytes(1, 1, wide // 12, S + 1, B)
    with torch.inference_mode():
        taken = d2l_torch.step_memory(
            lambda X: gqa.forward_step(X, dict(rows)), torch.randn(B, 1, wide))
    assert size <= taken < 2 * size, f'{taken} bytes, the cache {size}'


def test_a_jax_step_never_repeats_a_head():
    """The plan's temporaries: slices of the cache, not twelve times those."""
    S, wide = 512, 96
    gqa = d2l_jax.GQAAttention(wide, 12, 1, rope=True)
    ks, vs = jnp.zeros((2, 1, B, S, 1, wide // 12))
    size = d2l_jax.cache_bytes(1, 1, wide // 12, S, B)
    step = jax.jit(lambda X, ks, vs: gqa.forward_step(X, ks, vs, 0, 3),
                   donate_argnums=(1, 2))
    taken = d2l_jax.step_memory(step, jnp.zeros((B, 1, wide)), ks, vs)
    assert taken < 4 * size, f'{taken} bytes, the cache {size}'


@pytest.mark.slow
def test_a_bf16_layer_keeps_a_bf16_cache(backend):
    model = backend.bf16(gpt(backend))
    _, cache = backend.feed(model, backend.empty(model, B, T), ids(B, 3), 0)
    assert backend.dtypes(cache) == {'bfloat16'}


def test_torch_prompt_views_are_copied():
    """A prompt of any length: each projection's buffer is let go."""
    for n in (1, 4):
        gqa, cache = layer(BACKENDS['torch']), {}
        with torch.inference_mode():
            gqa.forward_step(torch.randn(B, n, D), cache)
        assert d2l_torch.held_bytes(cache.values()) == d2l_torch.cache_bytes(
            1, G, HD, n, B)
