"""Rotary positions, masks and multi-head attention.

B batch, T queries, S keys, H heads, hd head width, D model width (H * hd)
"""

import jax
import jax.numpy as jnp
from flax import nnx

from ..checks import check_heads

__all__ = ['rope', 'attention_mask', 'attention_weights',
           'MultiHeadAttention']


def rope(x, offset=0, base=10000):
    """Rotate each pair (x[..., 2i], x[..., 2i + 1]) by its position's angle.

    x: (B, T, H, hd), any layout that ends in (T, H, hd). offset: position
    of the first row, or (B, 1) positions, one for each sequence; may be
    traced. Angles are fp32 whatever the type of x, which the result keeps.
    ValueError if hd is odd. Source: RoFormer, 2021.
    """
    T, hd = x.shape[-3], x.shape[-1]
    if hd % 2:
        raise ValueError(f'rope rotates pairs, but the head width is {hd}')
    pairs = jnp.arange(0, hd, 2, dtype=jnp.float32)
    positions = (offset + jnp.arange(T)).astype(jnp.float32)
    angles = positions[..., None] * base ** (-pairs / hd)  # (.., T, hd / 2)
    angles = angles[..., None, :]  # one for all heads
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    x1, x2 = x[..., 0::2].astype(cos.dtype), x[..., 1::2].astype(cos.dtype)
    y = jnp.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), axis=-1)
    return y.reshape(x.shape).astype(x.dtype)


def attention_mask(T, S, valid_lens=None, causal=False):
    """True where a query may look at a key, or None if it may everywhere.

    valid_lens: (B,) or (B, T) numbers of keys; causal: aligned to the end,
    so that query i sees keys j <= i + S - T. Shape: (T, S), with valid_lens
    (B, 1, T, S).
    """
    mask = jnp.tri(T, S, S - T, dtype=bool) if causal else None
    if valid_lens is None:
        return mask
    if valid_lens.ndim == 1:
        valid_lens = jnp.broadcast_to(valid_lens[:, None],
                                      (len(valid_lens), T))
    valid = jnp.arange(S) < valid_lens[:, None, :, None]
    return valid if mask is None else valid & mask


def attention_weights(q, k, mask=None):
    """Weights (B, H, T, S) of q (B, T, H, hd) on k (B, S, H, hd).

    mask: (T, S) or (B, 1, T, S), True where a query may look. A query that
    may look nowhere gets zeros.
    """
    scores = jnp.einsum('bthd,bshd->bhts', q, k) / q.shape[-1] ** 0.5
    if mask is None:
        return jax.nn.softmax(scores)
    # softmax(where=mask) would cost twice as much with its gradient
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return jnp.where(mask.any(-1, keepdims=True), jax.nn.softmax(scores), 0)


class MultiHeadAttention(nnx.Module):
    """Attention in parallel heads, with padding masks.

    queries: (B, T, D), keys and values: (B, S, D), valid_lens: (B,) or
    (B, T); returns (B, T, D) and the weights (B, H, T, S). Dropout falls on
    the attention weights.
    """

    def __init__(self, num_hiddens, num_heads, dropout, bias=False,
                 rngs=None):
        check_heads(num_hiddens, num_heads)
        rngs = rngs or nnx.Rngs(0)
        self.num_heads = num_heads
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.W_q, self.W_k, self.W_v, self.W_o = (
            nnx.Linear(num_hiddens, num_hiddens, use_bias=bias, rngs=rngs)
            for _ in range(4))

    def __call__(self, queries, keys, values, valid_lens=None):
        q, k, v = (W(X).reshape(*X.shape[:2], self.num_heads, -1)
                   for W, X in ((self.W_q, queries), (self.W_k, keys),
                                (self.W_v, values)))  # (B, T or S, H, hd)
        mask = attention_mask(q.shape[1], k.shape[1], valid_lens)
        weights = attention_weights(q, k, mask)
        Y = jnp.einsum('bhts,bshd->bthd', self.dropout(weights), v)
        return self.W_o(Y.reshape(queries.shape)), weights
