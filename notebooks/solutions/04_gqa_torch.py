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
import torch
from torch.nn import functional as F

from d2l_ext import torch as d2l

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
# B batch, T new tokens, S cached tokens, G key-value heads, hd head width
def gqa_step(attention, X, cache):
    """Y (B, T, D) for new tokens X (B, T, D)."""
    T, S = X.shape[1], cache['k'].shape[2] if cache else 0
    q, k, v = attention.project(X, X, X, offset=S)
    if S:
        k, v = (torch.cat([cache[name], new], dim=2)
                for name, new in (('k', k), ('v', v)))       # (B, G, S+T, hd)
    cache['k'], cache['v'] = k.clone(), v.clone()
    B, H, _, hd = q.shape
    r = H // attention.num_kv_heads
    q = q.reshape(B, -1, r * T, hd)                          # (B, G, rT, hd)
    mask = torch.ones(T, S + T, device=X.device).tril(S).bool()
    Y = F.scaled_dot_product_attention(q, k, v, mask.repeat(r, 1))
    return attention.W_o(
        Y.reshape(B, H, T, hd).transpose(1, 2).flatten(2))

d2l.attempt('cached-gqa', step=d2l.try_step(gqa_step))

# %% [markdown] tags=["expected"]
# ```output
# cached-gqa: right
#     step: right. The logits are those of the full pass for any split, and
#         the cache never held more than the shared heads: what is kept and
#         what is read have shrunk together.
# ```
