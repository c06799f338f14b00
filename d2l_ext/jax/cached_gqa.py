"""The cached step of `GQAAttention`, kept apart from the lesson on it.

Lesson 04 leaves it to the reader as an exercise.

B batch, T new tokens, S slots, H query heads, G key-value heads,
hd head width
"""

import jax
import jax.numpy as jnp

from ..utils import add_to_class
from .saved import GQAAttention

__all__ = []


@add_to_class(GQAAttention)
def forward_step(self, X, ks, vs, i, t):
    """Attend from T new tokens at t, .., t + T - 1, as block i of all.

    X: (B, T, D); ks, vs: (blocks, B, S, G, hd), returned with the new rows
    in place. Shared heads are read where they lie. ValueError if the
    attention is not causal.
    """
    if not self.causal:
        raise ValueError('causal=False: what is cached would have to change '
                         'with each new token')
    q, k, v = self.project(X, X, X, offset=t)
    ks = jax.lax.dynamic_update_slice(ks, k[None], (i, 0, t, 0, 0))
    vs = jax.lax.dynamic_update_slice(vs, v[None], (i, 0, t, 0, 0))
    # hides later tokens and empty slots alike
    mask = jnp.arange(ks.shape[2]) <= t + jnp.arange(q.shape[1])[:, None]
    Y = jax.nn.dot_product_attention(q, ks[i], vs[i], mask=mask[None, None])
    return self.W_o(Y.reshape(X.shape)), ks, vs
