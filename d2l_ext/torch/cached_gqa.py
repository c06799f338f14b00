"""The cached step of `GQAAttention`, kept apart from the lesson on it.

Lesson 04 leaves it to the reader as an exercise.

B batch, T new tokens, S cached tokens, H query heads, G key-value heads,
hd head width
"""

import torch
from torch.nn import functional as F

from ..utils import add_to_class
from .attention import attention_mask
from .saved import GQAAttention

__all__ = []


@add_to_class(GQAAttention)
def forward_step(self, X, cache):
    """Attend from T new tokens to the cached ones and among themselves.

    X: (B, T, D); cache: a dict that holds k and v (B, G, S, hd), or nothing
    yet, and grows by the new rows. Shared heads are read where they lie.
    ValueError if the attention is not causal.
    """
    if not self.causal:
        raise ValueError('causal=False: what is cached would have to change '
                         'with each new token')
    T, S = X.shape[1], cache['k'].shape[2] if cache else 0
    q, k, v = self.project(X, X, X, offset=S)
    if cache:
        k = torch.cat([cache['k'], k], dim=2)                # (B, G, S+T, hd)
        v = torch.cat([cache['v'], v], dim=2)
    else:  # a view would keep the buffer of a projection alive
        k, v = (x.clone(memory_format=torch.contiguous_format)
                for x in (k, v))
    cache['k'], cache['v'] = k, v
    B, H, T, hd = q.shape
    # the heads of a group become rows of one head: no copy of keys for each
    r = H // self.num_kv_heads
    q = q.reshape(B, -1, r * T, hd)                          # (B, G, rT, hd)
    mask = None if T == 1 else attention_mask(
        T, S + T, causal=True, device=q.device).repeat(r, 1)  # (rT, S+T)
    Y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return self.W_o(Y.reshape(B, H, T, hd).transpose(1, 2).flatten(2))
