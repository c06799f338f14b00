"""Masks, multi-head attention and the block's hooks, in both backends."""

import numpy as np
import pytest
import torch
from flax import nnx

B, T, S, H, HD = 2, 3, 5, 3, 4
D = H * HD


def arrays(backend, *shapes):
    rng = np.random.default_rng(0)
    return [backend.array(rng.normal(size=s).astype(np.float32))
            for s in shapes]


def attention(backend):
    torch.manual_seed(0)
    module = backend.d2l.MultiHeadAttention(D, H, 0.0, bias=True)
    module.eval()
    return module


def output(backend, y):
    return backend.numpy(y[0] if backend.name == 'jax' else y)


def loop_attention(weights, q, k, v, valid):
    """Attention one query and one head at a time. valid: (B, T) counts."""
    def linear(name, x):
        return x @ weights[f'{name}.weight'].T + weights[f'{name}.bias']
    q, k, v = linear('W_q', q), linear('W_k', k), linear('W_v', v)
    out = np.zeros_like(q)
    for b, t, h in np.ndindex(B, T, H):
        n, cut = valid[b, t], slice(h * HD, (h + 1) * HD)
        if n:
            score = k[b, :n, cut] @ q[b, t, cut] / np.sqrt(HD)
            weight = np.exp(score - score.max())
            out[b, t, cut] = weight / weight.sum() @ v[b, :n, cut]
    return linear('W_o', out)


@pytest.mark.parametrize('valid', [
    None, [4, 2], [[1, 5, 2], [3, 4, 5]], [0, 5], [[0, 1, 2], [5, 0, 3]]],
    ids=str)
def test_multi_head_attention_equals_a_loop(backend, valid):
    """Lengths per sequence or per query; nothing to see gives zeros."""
    module = attention(backend)
    q, k, v = arrays(backend, (B, T, D), (B, S, D), (B, S, D))
    lens = None if valid is None else backend.array(np.array(valid))
    y = output(backend, module(q, k, v, lens))
    counts = np.full((B, T), S) if valid is None else np.broadcast_to(
        np.array(valid).reshape(B, -1), (B, T))
    weights = backend.d2l.get_weights(module)
    expected = loop_attention(weights, *map(backend.numpy, (q, k, v)), counts)
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.slow
def test_dropout_acts_in_training(backend):
    """In attention and in the block, and in evaluation nowhere."""
    X, = arrays(backend, (B, T, D))
    for module in (backend.d2l.MultiHeadAttention(D, H, 0.5),
                   backend.d2l.TransformerBlock(
                       D, H, 0.5, **zero_attention(backend))):
        args = (X, X, X) if hasattr(module, 'W_q') else (X,)
        module.eval()
        quiet = [output(backend, module(*args)) if len(args) == 3
                 else backend.numpy(module(*args)) for _ in range(2)]
        np.testing.assert_array_equal(*quiet)
        module.train()
        loud = (output(backend, module(*args)) if len(args) == 3
                else backend.numpy(module(*args)))
        assert np.abs(loud - quiet[0]).max() > 0.01


def zero_attention(backend):
    """A factory of attention without dropout: only the block's is left."""
    build = backend.d2l.MultiHeadAttention
    return {'attn_factory': (lambda: build(D, H, 0.0))
            if backend.name == 'torch' else (lambda rngs: build(D, H, 0.0))}


def test_what_is_masked_does_not_leak(backend):
    """Keys and values past the valid length may hold anything."""
    module = attention(backend)
    q, k, v = arrays(backend, (B, T, D), (B, S, D), (B, S, D))
    lens = backend.array(np.array([4, 2]))
    k2, v2 = (backend.array(np.where(
        np.arange(S)[:, None] < np.array([4, 2])[:, None, None],
        backend.numpy(x), 1e6).astype(np.float32)) for x in (k, v))
    np.testing.assert_allclose(output(backend, module(q, k, v, lens)),
                               output(backend, module(q, k2, v2, lens)),
                               atol=1e-5)


@pytest.mark.parametrize('T, S, expected', [
    (3, 3, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
    (2, 4, [[1, 1, 1, 0], [1, 1, 1, 1]]), (1, 3, [[1, 1, 1]])])
def test_the_causal_mask_is_aligned_to_the_end(backend, T, S, expected):
    """Query i of T sees keys j <= i + S - T."""
    mask = backend.d2l.attention_mask(T, S, causal=True)
    np.testing.assert_array_equal(np.asarray(mask), np.array(expected, bool))


def test_both_masks_apply_at_once(backend):
    """Causal and valid lengths: a key must pass both."""
    mask = np.asarray(backend.d2l.attention_mask(
        2, 3, backend.array(np.array([1, 3])), causal=True))
    assert mask.shape == (2, 1, 2, 3)
    np.testing.assert_array_equal(
        mask[:, 0], np.array([[[1, 0, 0], [1, 0, 0]],
                              [[1, 1, 0], [1, 1, 1]]], bool))


def test_causal_attention_takes_valid_lens(backend):
    """Padding is not seen, and a sequence of length 0 gives no nan."""
    model = backend.gpt(7, D, H, 1)
    attend = model.blks[0].attention
    X, = arrays(backend, (B, S, D))
    full = output(backend, attend(X, X, X))
    y = output(backend, attend(X, X, X, backend.array(np.array([S, 2]))))
    np.testing.assert_allclose(y[0], full[0], atol=1e-5)
    np.testing.assert_allclose(y[1, :2], full[1, :2], atol=1e-5)
    y = output(backend, attend(X, X, X, backend.array(np.array([0, S]))))
    assert np.isfinite(y).all() and np.abs(y[0]).max() < 1e-6


@pytest.mark.parametrize('pre_norm', [True, False])
def test_the_block_uses_what_its_factories_build(backend, pre_norm):
    """attn_factory and ffn_factory replace the parts, masks reach them."""
    seen = []

    def attend(queries, keys, values, valid_lens=None):
        seen.append(valid_lens)
        return (queries * 0, None) if backend.name == 'jax' else queries * 0

    def zero(X):
        return X * 0

    if backend.name == 'torch':
        class Zero(torch.nn.Module):
            def __init__(self, f):
                super().__init__()
                self.forward = f
        factories = dict(attn_factory=lambda: Zero(attend),
                         ffn_factory=lambda: Zero(zero))
    else:
        class Zero(nnx.Module):
            def __init__(self, f):
                self.f = f

            def __call__(self, *args):
                return self.f(*args)
        factories = dict(attn_factory=lambda rngs: Zero(attend),
                         ffn_factory=lambda rngs: Zero(zero))
    blk = backend.d2l.TransformerBlock(D, H, pre_norm=pre_norm, **factories)
    X, = arrays(backend, (B, T, D))
    lens = backend.array(np.array([1, 2]))
    y = backend.numpy(blk(X, lens))
    assert seen == [lens] or seen[0] is lens
    x = backend.numpy(X)
    if not pre_norm:  # twice the same root mean square normalization
        for _ in range(2):
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, x, atol=1e-5)


def test_a_default_block_masks_padding(backend):
    """The default attention is not causal and honours valid_lens."""
    torch.manual_seed(0)
    blk = backend.d2l.TransformerBlock(D, H)
    X, = arrays(backend, (B, T, D))
    changed = backend.numpy(X).copy()
    changed[:, 2] += 1
    lens = backend.array(np.array([2, 2]))
    for valid_lens, leaks in ((lens, False), (None, True)):
        a, b = (backend.numpy(blk(backend.array(x), valid_lens))[:, :2]
                for x in (backend.numpy(X), changed))
        assert (np.abs(a - b).max() > 1e-4) == leaks
