"""Rotary positions, masks and multi-head attention.

B batch, T queries, S keys, H heads, hd head width, D model width (H * hd)
"""

import torch
from torch import nn

from ..checks import check_heads

__all__ = ['rope', 'attention_mask', 'attention_weights',
           'MultiHeadAttention']


def rope(x, offset=0, base=10000):
    """Rotate each pair (x[..., 2i], x[..., 2i + 1]) by its position's angle.

    x: (B, H, T, hd), any layout that ends in (T, hd). offset: position of
    the first row, or (B, 1, 1) positions, one for each sequence. Angles are
    fp32 whatever the type of x, which the result keeps. ValueError if hd is
    odd. Source: RoFormer, 2021.
    """
    T, hd = x.shape[-2:]
    if hd % 2:
        raise ValueError(f'rope rotates pairs, but the head width is {hd}')
    pairs = torch.arange(0, hd, 2, dtype=torch.float32, device=x.device)
    positions = offset + torch.arange(
        T, dtype=torch.float32, device=x.device)
    angles = positions[..., None] * base ** (-pairs / hd)  # (.., T, hd / 2)
    cos, sin = angles.cos(), angles.sin()
    x1, x2 = x[..., 0::2].float(), x[..., 1::2].float()
    y = torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)
    return y.flatten(-2).to(x.dtype)


def attention_mask(T, S, valid_lens=None, causal=False, device=None):
    """True where a query may look at a key, or None if it may everywhere.

    valid_lens: (B,) or (B, T) numbers of keys; causal: aligned to the end,
    so that query i sees keys j <= i + S - T. Shape: (T, S), with valid_lens
    (B, 1, T, S).
    """
    mask = None
    if causal:
        mask = torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)
    if valid_lens is None:
        return mask
    if valid_lens.dim() == 1:
        valid_lens = valid_lens[:, None].expand(-1, T)
    valid = torch.arange(S, device=device) < valid_lens[:, None, :, None]
    return valid if mask is None else valid & mask


def attention_weights(q, k, mask=None):
    """Weights (B, H, T, S) of q (B, H, T, hd) on k (B, H, S, hd).

    mask: (T, S) or (B, 1, T, S), True where a query may look. A query that
    may look nowhere gets zeros.
    """
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return weights.where(mask.any(-1, keepdim=True), 0)


class MultiHeadAttention(nn.Module):
    """Attention in parallel heads, with padding masks.

    queries: (B, T, D), keys and values: (B, S, D), valid_lens: (B,) or
    (B, T); returns (B, T, D). Dropout falls on the attention weights.
    """

    def __init__(self, num_hiddens, num_heads, dropout, bias=False):
        super().__init__()
        check_heads(num_hiddens, num_heads)
        self.num_heads = num_heads
        self.dropout = nn.Dropout(dropout)
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def forward(self, queries, keys, values, valid_lens=None):
        q, k, v = (W(X).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                   for W, X in ((self.W_q, queries), (self.W_k, keys),
                                (self.W_v, values)))  # (B, H, T or S, hd)
        mask = attention_mask(q.shape[2], k.shape[2], valid_lens,
                              device=q.device)
        Y = self.dropout(attention_weights(q, k, mask)) @ v
        return self.W_o(Y.transpose(1, 2).flatten(2))
