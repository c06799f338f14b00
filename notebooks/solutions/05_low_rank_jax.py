# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: Keys and Values of Low Rank
#
# They run after the notebook, in its kernel.

# %%
import jax
import jax.numpy as jnp

from d2l_ext import jax as d2l

# %% [markdown]
# ## Attention from Latents Alone
#
# **1.** The score of query $q$ of a head on token $j$ has three factors,
# and matrix products may be bracketed as we like:
#
# $$q \, (c_j U_K)^\top = q \, (U_K^\top c_j^\top)
#   = (q \, U_K^\top) \, c_j^\top.$$
#
# On the left a key of width $d_h$ is made for each cached token; on the right
# one vector of width $r$ for the query, which then meets the latents as they
# lie in the cache. The width that scales the score is still $d_h$: the number
# is the same, only the order of work has changed. For the output the factor
# that all terms share is drawn out of the sum,
#
# $$\sum_j \alpha_j \, (c_j U_V) = \Big(\sum_j \alpha_j c_j\Big) U_V,$$
#
# so we average latents and make one value of the mean. (In a layer, $U_K^\top$
# can be multiplied into $W_q$ once and for all, and $U_V$ into $W_o$. That is
# the absorption that gives the exercise its name.)
#
# **2.** With rotary positions, a rotation $R_{t-j}$ by the distance of query
# $t$ and token $j$ stands between the two vectors:
#
# $$q \, R_{t-j} \, (c_j U_K)^\top = (q \, R_{t-j} U_K^\top) \, c_j^\top.$$
#
# The bracket on the right depends on $j$. Rotation and $U_K$ do not commute,
# so it cannot be moved out of the way, and each of the 1000 tokens, all at
# different distances, asks for a folded query of its own: 1000 vectors of $r$
# numbers, more work than making 1000 keys of $d_h$. If position has a part of
# its own, $q^R_t$ and $k^R_j$, the score is a sum, of which the first term
# folds as above, with one vector, and the second is a short product:
#
# $$\big(q \, U_K^\top \, c_j^\top + q^R_t \, (k^R_j)^\top\big) \, /
#   \sqrt{d_h + d_R}.$$
#
# Both belong to one product of the vectors laid end to end, hence the one
# scale, and the sum before the softmax.
#
# **3.** Without sharing, a token leaves $2 H d_h = 32768$ numbers. A score
# is a product of $d_h$ numbers, $2 d_h$ FLOPs, and the weighted sum takes as
# many, for each of $H$ heads: $4 H d_h = 65536$ FLOPs. With MLA the token
# leaves $r + d_R = 576$ numbers. Folded, a score is a product of $r + d_R$
# numbers and the weighted sum one over latents, without the rotary part:
# $H \, (2 (r + d_R) + 2 r) = 278528$ FLOPs. Grouped heads cache $2 d_h = 256$
# numbers each, so 576 are as many as $2.25$ heads have.
#
# MHA has 2 FLOPs for each number it reads, MLA 484. In 16 bits that is 1 and
# 242 FLOPs per byte. The ridge of a card like an H100 is near 300 (a thousand
# TFLOP/s in 16 bits over 3.35 TB/s). So folded MLA makes more than four times
# as many FLOPs on a fifty-seventh of the bytes, and is nearly balanced: its
# decode step reads its cache about as fast as it can compute with it. For MHA
# no batch helps here, as a sequence's cache is read for that sequence alone.

# %% exercise="absorbed"
# H heads, d head width, r latent width, R rotary width, S cached tokens
def absorbed(q, c, U_K, U_V, rotary=0, R=0):
    """Scores (H, S) and outputs (H, d), from latents alone."""
    folded = (q[:, None] @ U_K.mT)[:, 0]                     # (H, r)
    scores = (folded @ c.T + rotary) * (q.shape[1] + R)**-0.5
    mean = jax.nn.softmax(scores) @ c                        # (H, r)
    return scores, (mean[:, None] @ U_V)[:, 0]

def absorbed_rotary(q, q_R, c, k_R, U_K, U_V):
    """The same with a rotary part: q_R (H, R), k_R (S, R) for all heads."""
    return absorbed(q, c, U_K, U_V, q_R @ k_R.T, q_R.shape[1])

H_V2, d_h, r_V2, d_R = 128, 128, 512, 64
elements = {'MHA': 2 * H_V2 * d_h, 'MLA': r_V2 + d_R}
flops = {'MHA': 2 * 2 * H_V2 * d_h, 'MLA': 2 * H_V2 * (r_V2 + d_R + r_V2)}
d2l.attempt('absorbed', latent=d2l.try_latents(absorbed),
            rotary=d2l.try_latents(absorbed_rotary),
            queries={'rotated': 1000, 'separate': 1},
            elements=elements, flops=flops,
            heads=elements['MLA'] / (2 * d_h),
            per_element={kind: flops[kind] / elements[kind]
                         for kind in elements})

# %% [markdown] tags=["expected"]
# ```output
# absorbed: right
#     latent: right. Keys and values never existed: each head asks with a
#         query as wide as a latent, so the latents play the part of a single
#         key-value head that all share.
#     rotary: right. The sum of two products is one product of longer vectors;
#         so this still is multi-query attention, with a key of r + R numbers.
#     queries: right. A matrix with rotation between its factors would have to
#         be folded anew for each distance, which costs more than the keys
#         did; kept apart, position costs one short product.
#     elements: right. A token leaves less than a fiftieth, and nothing of it
#         belongs to a head.
#     flops: right. Folding is not cheaper to compute, it takes more than four
#         times as many FLOPs for a cached token; it is cheaper to read.
#     heads: right. Grouped heads that cached as little would be two or so for
#         128 query heads. MLA keeps every head's own keys and values, as far
#         as r numbers can tell them apart.
#     per_element: right. In 16 bits that is one FLOP per byte without
#         sharing, far below the ridge of any accelerator, and some 240 with
#         MLA, near it: reading the cache and computing with it take about as
#         long. A larger batch cannot do that for MHA, as each sequence has a
#         cache of its own.
# ```

# %% [markdown]
# ## Directions Fixed Beforehand
#
# Of $M = U S V^\top$ only $V$ can be taken along: its columns are directions
# in the space of rows, while $U$ has an entry for each token of the passage
# it comes from. The nearest point to a row $m$ in the span of the first $r$
# columns $V_r$ is $m V_r V_r^\top$: coordinates, and back. No mean is taken
# off, since a cache of coordinates knows none.
#
# The singular values come sorted, so one decomposition serves all ranks. (For
# GPT-2 we try rank 512 as well, which the lesson's oracle has not.)

# %% exercise="fixed-basis"
def basis(fit, r):
    """Orthonormal columns V (w, r), fitted to the rows of fit (N, w)."""
    _, _, Vh = jnp.linalg.svd(fit, full_matrices=False)
    return Vh[:r].T

def project(M, V):
    """The rows of M (T, w) or (B, T, w), projected: the same shape."""
    return (M @ V) @ V.T

next_kept = []

def keep_rows(q, k, v, i):
    next_kept.append(rows(k, v)[0])
    return stock_attention(q, k, v)

forward_blocks(model, passage(1), keep_rows)
tried = (512, *ranks) if run.checkpoint == 'gpt2' else ranks
bases = [basis(M, max(tried)) for M in next_kept]

def fixed_kv(r):
    """An attn_fn: keys and values on directions of the next passage."""
    def attn_fn(q, k, v, i):
        M = project(rows(k, v), bases[i][:, :r])
        M = M.reshape(*M.shape[:2], -1, k.shape[-1])
        k, v = jnp.split(M, 2, axis=2)
        return stock_attention(q, k, v)
    return attn_fn

X = passage(0)
oracle = losses | {r: tail_loss(forward_blocks(model, X, lowrank_kv(r)))
                   for r in tried if r not in losses}
fixed = {r: tail_loss(forward_blocks(model, X, fixed_kv(r))) for r in tried}
for r in tried:
    print(f'rank {r}: fixed {fixed[r]:.2f}, oracle {oracle[r]:.2f}, '
          f'full attention {full:.2f}')
d2l.attempt('fixed-basis', basis=d2l.try_arrays(basis),
            project=d2l.try_arrays(project),
            loss={'full': full, 'oracle': oracle, 'fixed': fixed})

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# rank 256: fixed 3.29±0.02, oracle 3.19±0.02, full attention 3.09±0.02
# rank 192: fixed 3.58±0.02, oracle 3.29±0.02, full attention 3.09±0.02
# rank 128: fixed 4.01±0.02, oracle 3.60±0.02, full attention 3.09±0.02
# fixed-basis: right
#     basis: right. These columns are fixed before the next token comes, so
#         they need to be kept once and not for each passage.
#     project: right. Between the two products there are r numbers per token:
#         that is all a cache would hold.
#     loss: right. The distance to the oracle is what the oracle knew of the
#         passage and no cache can know. How much is left of the room for a
#         latent that is not learned?
# ```
# ```output smollm2 sotu1898
# rank 256: fixed 4.23±0.02, oracle 4.18±0.02, full attention 3.93±0.02
# rank 192: fixed 4.58±0.02, oracle 4.43±0.02, full attention 3.93±0.02
# rank 128: fixed 4.96±0.02, oracle 4.63±0.02, full attention 3.93±0.02
# fixed-basis: right
#     basis: right. These columns are fixed before the next token comes, so
#         they need to be kept once and not for each passage.
#     project: right. Between the two products there are r numbers per token:
#         that is all a cache would hold.
#     loss: right. The distance to the oracle is what the oracle knew of the
#         passage and no cache can know. How much is left of the room for a
#         latent that is not learned?
# ```
# ```output gpt2 timemachine
# rank 512: ~…
# rank 256: fixed ~…, oracle 3.49±0.02, full attention 3.58±0.02
# rank 128: fixed ~…, oracle 3.66±0.02, full attention 3.58±0.02
# fixed-basis: right
#     basis: right. These columns are fixed before the next token comes, so
#         they need to be kept once and not for each passage.
#     project: right. Between the two products there are r numbers per token:
#         that is all a cache would hold.
#     loss: right. The distance to the oracle is what the oracle knew of the
#         passage and no cache can know. How much is left of the room for a
#         latent that is not learned?
# ```
# ```output gpt2 sotu1898
# rank 512: ~…
# rank 256: ~…
# rank 128: ~…
# fixed-basis: right
#     basis: right. These columns are fixed before the next token comes, so
#         they need to be kept once and not for each passage.
#     project: right. Between the two products there are r numbers per token:
#         that is all a cache would hold.
#     loss: right. The distance to the oracle is what the oracle knew of the
#         passage and no cache can know. How much is left of the room for a
#         latent that is not learned?
# ```

# %% [markdown]
# On the novel the oracle promised that two thirds of the directions cost 0.10
# nats and a third 0.51. Directions that were fixed on the very next passage
# cost 0.20 and 0.92, about twice as much. On the address the oracle was dearer
# to begin with (0.25 and 0.70), and fixed directions add 0.05 and 0.33 to it.
# And the neighbour is the best case: the same text, the same model, and as
# many tokens to fit as to score.
#
# So a good part of what the oracle promised was knowledge of the passage, the
# more so the fewer directions there are. MLA gets along with a narrow latent,
# and differs in three ways: its projection is learned on the loss and not
# fitted to squared error, the model learns along with it, and rotation, which
# spreads keys over many directions, is kept out of the latent. This
# measurement does not tell which of them matters most; the lesson's comparison
# before and after rotation says that the third is no small part.
