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

@torch.inference_mode()
def cached_logits(lm, X, caches):
    """The model's logits of new tokens X (1, T), one cache for each block."""
    h = lm.token_emb(X)
    for blk, cache in zip(lm.blks, caches, strict=True):
        z = blk.before_attention(h)
        h = blk.after_attention(h, gqa_step(blk.attention, z, cache))
    return lm.norm(h) @ lm.token_emb.weight.T

torch.manual_seed(0)
lm = d2l.GPT(97, 128, 4, 3, num_kv_heads=2).to(device).eval()
X = torch.randint(97, (1, 48), device=device)
caches = [{} for _ in lm.blks]
chunks = [X[:, :16], *X[:, 16:].split(1, dim=1)]
stepwise = torch.cat([cached_logits(lm, x, caches) for x in chunks], dim=1)
with torch.inference_mode():
    difference = (stepwise - lm(X)).abs().max().item()

d2l.attempt('cached-gqa', step=d2l.try_step(gqa_step),
            difference=difference)

# %% [markdown] tags=["expected"]
# ```output
# cached-gqa: right
#     step: right. The outputs are those of a full pass for any split, and the
#         cache never held more than the shared heads: what is kept and what
#         is read have shrunk together.
#     difference: right. Nothing around the layer had to change: norms,
#         feed-forward networks and the output see one token at a time anyway.
# ```

# %% [markdown]
# ## Taking Heads Away Afterwards
#
# The rows of $W_k$ are its outputs, $d_h$ rows for each head, one head below
# the other. So `reshape` to (groups, heads of a group, $d_h$, columns) and
# the groups can be averaged, or their first heads picked, over one axis. A
# bias has the same rows and no columns, and goes the same way. $W_q$ and
# $W_o$ stay: all eight query heads are still there.
#
# Pooling weights is pooling keys: $W_k x$ is linear in $W_k$, and a position
# rotates all heads alike, so the new key is the mean of the four keys that
# the old model would have written. The same holds for the values.

# %% exercise="uptraining"
def shared_heads(weights, hd, G, pick):
    """Weights with G key-value heads; pick: (G, r, hd, ..) to (G, hd, ..)."""
    new = dict(weights)
    for name, a in weights.items():
        if name.split('.')[-2] in ('W_k', 'W_v'):            # weight or bias
            heads = a.reshape(G, -1, hd, *a.shape[1:])
            new[name] = pick(heads).reshape(G * hd, *a.shape[1:])
    return new

def pool_heads(weights, hd, G):
    return shared_heads(weights, hd, G, lambda heads: heads.mean(1))

def pick_heads(weights, hd, G):
    return shared_heads(weights, hd, G, lambda heads: heads[:, 0])

def converted(convert):
    """A new model with two heads, with weights made from the parent's."""
    lm = build(2)
    d2l.set_weights(lm, convert(weights, hd, 2))
    return lm

def loss_after(lm, steps):
    train(lm, steps)
    return d2l.val_loss(lm, data)

hd = sizes['width'] // 8
parent = build(8)
before = {'parent': loss_after(parent, 300)}
weights = d2l.get_weights(parent)
pooled, picked = converted(pool_heads), converted(pick_heads)
before |= {'mean': d2l.val_loss(pooled, data),
           'first': d2l.val_loss(picked, data)}
after = {'mean': loss_after(pooled, 15), 'scratch': loss_after(build(2), 315)}
for when, found in (('before', before), ('after', after)):
    print(when, ', '.join(f'{name} {x:.2f}' for name, x in found.items()))
d2l.attempt('uptraining', pool=pool_heads, pick=pick_heads, before=before,
            after=after)

# %% [markdown] tags=["expected"]
# ```output
# before parent <2.2, mean >2.2, first >2.2
# after mean <2.8, scratch <2.2
# uptraining: right
#     pool: right. A key depends on its weights linearly, and positions rotate
#         all heads alike: the new key is the mean of the old ones in its
#         group, and the queries were made for those.
#     pick: right. A quarter of the query heads finds its own keys and values
#         again, the others read what was made for a neighbour.
#     before: right. What a conversion loses is what the heads of a group did
#         not have in common: nothing in training made neighbours alike.
#     after: right. Embeddings, queries and feed-forward networks were still
#         there, so steps do more here than at the start of training. Whether
#         it is enough is for the three numbers to say.
# ```

# %% [markdown]
# (The bounds are wide because they hold for both texts and both backends, and
# are what the argument needs.) With the sizes of `small` we noted three runs,
# both texts in PyTorch and the address in JAX. The parent is at 1.75 to 1.85
# nats. With heads taken away it is near 3, hardly better than guessing evenly
# among 28 symbols, which costs 3.3. Nothing in training made neighbouring
# heads alike, so each query meets keys that answer no question of its own.
# Which proposal is better three runs do not say: the mean was ahead twice, by
# 0.13 to 0.15, and behind once, by 0.10. A mean holds something of every
# head; with the first head a quarter of the queries are served as before and
# three quarters are misled.
#
# Fifteen steps, five per cent of the training, bring the pooled model to about
# 2.2. Of a good nat that was lost two thirds are back. The model is not where
# 315 steps from scratch end, within a tenth of the parent: one that may still
# be trained from the start needs no conversion. For large models Ainslie et
# al. (2023) find five per cent of the pretraining enough to come close to the
# parent, and the mean better than the first head; theirs is a far longer five
# per cent, of a model that has learnt far more.
#
# One seed and small models: the order of the parent, the converted ones and
# the one with a little more training is what to take from here, not their
# distances.
