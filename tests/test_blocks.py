"""Walking through the blocks: squeezed keys and values, windows and sinks."""

import numpy as np
import pytest

# V, D, H, blocks; T tokens; every size differs from the others
SIZE, T = (37, 48, 6, 3), 11
FORMS = {
    'rope, fused': {},
    'rope, grouped': dict(num_kv_heads=2, base=300),
    'learned, fused': dict(pos='learned', norm='layer', act='gelu',
                           bias=True),
    'learned, grouped': dict(pos='learned', num_kv_heads=3),
    'post-norm': dict(pre_norm=False),
}
IDS = np.random.default_rng(0).integers(0, 37, (2, T))


def walk(backend, model, attn_fn, X=IDS):
    return backend.numpy(backend.d2l.forward_blocks(
        model, backend.array(X), attn_fn))


def attention(q, k, v, mask):
    """Heads (B, H, T, hd) one by one, in float64; mask: (T, T)."""
    out, shared = np.zeros(q.shape), q.shape[1] // k.shape[1]
    for b, h in np.ndindex(q.shape[:2]):
        scores = q[b, h] @ k[b, h // shared].T / np.sqrt(q.shape[-1])
        A = np.exp(scores - scores.max()) * mask
        out[b, h] = A / A.sum(-1, keepdims=True) @ v[b, h // shared]
    return out


def heads_first(backend, x):
    """NumPy in the layout (B, heads, T, hd) of torch."""
    x = np.asarray(backend.numpy(x), np.float64)
    return x if backend.name == 'torch' else x.swapaxes(1, 2)


def handed_over(backend, **form):
    """(q, k, v) that the first block hands to its attn_fn."""
    seen = []

    def keep(q, k, v, i):
        seen.append((q, k, v))
        return backend.d2l.stock_attention(q, k, v)
    walk(backend, backend.gpt(*SIZE, **form), keep)
    return seen[0]


@pytest.mark.parametrize('form', FORMS)
def test_the_models_own_attention_gives_its_own_logits(backend, form):
    """The walk is the model, for learned and rotated positions alike."""
    model = backend.gpt(*SIZE, **FORMS[form])
    difference = walk(backend, model, backend.d2l.stock_attention) - (
        backend.full(model, IDS))
    assert np.abs(difference).max() < 1e-5, np.abs(difference).max()


@pytest.mark.parametrize('form, G', [('rope, fused', 6), ('rope, grouped', 2),
                                     ('learned, grouped', 3)])
def test_what_is_handed_over(backend, form, G):
    """Each block once, in order, with its own number of key-value heads."""
    calls = []

    def attn_fn(q, k, v, i):
        calls.append((i, *(heads_first(backend, x).shape
                           for x in (q, k, v))))
        return backend.d2l.stock_attention(q, k, v)
    walk(backend, backend.gpt(*SIZE, **FORMS[form]), attn_fn)
    assert calls == [(i, (2, 6, T, 8), (2, G, T, 8), (2, G, T, 8))
                     for i in range(3)]


def test_what_attention_answers_is_used_and_checked(backend):
    model = backend.gpt(*SIZE)
    nothing = walk(backend, model, lambda q, k, v, i: 0 * q)
    stock = walk(backend, model, backend.d2l.stock_attention)
    assert np.abs(nothing - stock).max() > 1e-3
    with pytest.raises(ValueError, match='expected'):
        walk(backend, model, lambda q, k, v, i: q[:, :-1])


def test_too_long_a_passage_is_refused(backend):
    model = backend.gpt(*SIZE, max_len=T - 1)
    with pytest.raises(ValueError, match=f'{T} new > {T - 1}'):
        walk(backend, model, backend.d2l.stock_attention)


# Low rank


def test_rows_hold_keys_then_values_of_one_token(backend):
    q, k, v = handed_over(backend, num_kv_heads=2)
    M = backend.numpy(backend.d2l.rows(k, v))
    assert M.shape == (2, T, 2 * 2 * 8)
    k, v = heads_first(backend, k), heads_first(backend, v)
    for t in (0, T - 1):
        np.testing.assert_array_equal(M[1, t], np.concatenate(
            [x[1, g, t] for x in (k, v) for g in range(2)]))


def test_no_matrix_of_that_rank_is_closer(backend):
    """The squared error is that of the singular values left out."""
    M = np.random.default_rng(1).normal(size=(2, 13, 9)).astype(np.float32)
    for r in (1, 4, 9):
        near = backend.numpy(backend.d2l.squeeze(backend.array(M), r))
        for one, other in zip(M, near, strict=True):
            left = np.linalg.svd(one)[1][r:]
            assert np.linalg.matrix_rank(other, tol=1e-4) == r
            np.testing.assert_allclose(np.sum((one - other)**2),
                                       np.sum(left**2), atol=1e-4)


@pytest.mark.parametrize('r', [0, 10, -1])
def test_a_rank_that_is_none_is_refused(backend, r):
    with pytest.raises(ValueError, match=f'rank {r}: expected 1 to 9'):
        backend.d2l.squeeze(backend.array(np.ones((1, 13, 9))), r)


@pytest.mark.parametrize('G', [None, 2])
def test_low_rank_attention_reads_the_nearest_keys_and_values(backend, G):
    """Against NumPy, one sequence and one head at a time."""
    q, k, v = handed_over(backend, num_kv_heads=G)
    answer = heads_first(backend, backend.d2l.lowrank_kv(3)(q, k, v, 0))
    q, k, v = (heads_first(backend, x) for x in (q, k, v))
    for b in range(2):
        M = np.concatenate([k[b], v[b]]).transpose(1, 0, 2).reshape(T, -1)
        U, S, Vh = np.linalg.svd(M, full_matrices=False)
        M = (U[:, :3] * S[:3] @ Vh[:3]).reshape(T, -1, 8).transpose(1, 0, 2)
        k[b], v[b] = np.split(M, 2)
    expected = attention(q, k, v, np.tri(T))
    assert np.abs(answer - expected).max() < 1e-5


def test_full_rank_changes_nothing(backend):
    model = backend.gpt(*SIZE, num_kv_heads=2)
    difference = walk(backend, model, backend.d2l.lowrank_kv(T)) - (
        backend.full(model, IDS))
    assert np.abs(difference).max() < 1e-4


# Windows


@pytest.mark.parametrize('window, sinks, first', [
    (1, 0, 0), (4, 0, 0), (4, 1, 0), (3, 2, 0), (3, 2, 4), (T, 0, 0),
    (99, 5, 0)])
def test_a_window_sees_the_latest_and_the_sinks(backend, window, sinks,
                                                first):
    """Against a mask written down pair by pair, with shared heads."""
    q, k, v = handed_over(backend, num_kv_heads=2)
    answer = heads_first(backend, backend.d2l.window_attention(
        window, sinks, first)(q, k, v, 0))
    mask = [[j in range(t - window + 1, t + 1)
             or j in range(first, min(first + sinks, t + 1))
             for j in range(T)] for t in range(T)]
    expected = attention(*(heads_first(backend, x) for x in (q, k, v)),
                         np.array(mask, float))
    assert np.abs(answer - expected).max() < 1e-5


def test_a_window_of_one_row_fits_the_end(backend):
    """A single query is the latest token, as in a decode step."""
    q, k, v = handed_over(backend)
    last = (slice(None), slice(None), slice(-1, None))
    if backend.name == 'jax':
        last = (slice(None), slice(-1, None))
    window = backend.d2l.window_attention(4, 2)
    np.testing.assert_allclose(
        backend.numpy(window(q[last], k, v, 0)),
        backend.numpy(window(q, k, v, 0))[last], atol=1e-6)


@pytest.mark.parametrize('window', [0, -3, 2.5])
def test_a_window_holds_at_least_the_query_itself(backend, window):
    with pytest.raises(ValueError, match='window='):
        backend.d2l.window_attention(window)


@pytest.mark.parametrize('name', ['sinks', 'first'])
@pytest.mark.parametrize('value', [-1, 1.5])
def test_sinks_are_counted_in_whole_tokens(backend, name, value):
    with pytest.raises(ValueError, match=f'{name}={value}'):
        backend.d2l.window_attention(4, **{name: value})
