# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: Sharing Keys and Values
#
# They run after the notebook, in its kernel.

# %%
import jax
import jax.numpy as jnp

from d2l_ext import jax as d2l

# %% [markdown]
# ## A Cached Step with Shared Heads
#
# Three things have to be right, as in the lesson on the cache, and one more.
#
# * **Position.** $S$ tokens are cached, so the first new one is at position
#   $S$; `project` takes it as its offset, for queries and keys alike. Keys go
#   into the cache rotated and stay as they are.
# * **Mask.** New token $i$ sees $j \le S + i$. A single token needs none in
#   PyTorch; in JAX the same mask also hides the slots that are empty.
# * **Memory.** What is kept has $H_{kv}$ heads.
# * **Groups.** Query head $h$ reads key-value head $\lfloor h / r \rfloor$
#   with $r = H / H_{kv}$. The $r$ heads of a group are neighbours, so they
#   can be laid one below the other as $rT$ queries of a single head, whose
#   product with the shared keys reads them once. (JAX's attention does this
#   itself, when the numbers of heads differ.) The mask is then the one of a
#   single head, repeated $r$ times.
#
# Repeating keys and values instead gives the same numbers, and gives away
# what was to be saved.

# %% exercise="cached-gqa"
# B batch, T new tokens, S slots, G key-value heads, hd head width
def gqa_step(attention, X, ks, vs, t):
    """Y (B, T, D) for new tokens X (B, T, D), and ks, vs with their rows."""
    q, k, v = attention.project(X, X, X, offset=t)
    ks = jax.lax.dynamic_update_slice(ks, k, (0, t, 0, 0))
    vs = jax.lax.dynamic_update_slice(vs, v, (0, t, 0, 0))
    rows, slots = jnp.arange(X.shape[1]), jnp.arange(ks.shape[1])
    mask = slots <= t + rows[:, None]                        # (T, S)
    Y = jax.nn.dot_product_attention(q, ks, vs, mask=mask[None, None])
    return attention.W_o(Y.reshape(X.shape)), ks, vs

d2l.attempt('cached-gqa', step=d2l.try_step(gqa_step))

# %% [markdown] tags=["expected"]
# ```output
# cached-gqa: right
#     step: right. The logits are those of the full pass for any split, and
#         the cache never held more than the shared heads: what is kept and
#         what is read have shrunk together.
# ```
