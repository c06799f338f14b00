# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: From Recompute to Cache
#
# They run after the notebook, in its kernel.

# %%
import torch
from torch.nn import functional as F

from d2l_ext import torch as d2l

# %% [markdown]
# ## A Forgotten Offset
#
# **The step.** It is the lesson's, but for one argument: `project` without an
# offset rotates the first new token as position 0. For the prompt that is
# right, since it begins there. For a single decoded token it is always 0. The
# check runs it on small layers; we measure on a block of its own, against
# the correct step.
#
# **The offsets.** A decoded query is rotated at 0. A key of the prompt at $j$
# was rotated at $j$, an earlier decoded key at 0. So the score of $p$ and $j$
# uses the offset
#
# $$0 - j = -j \quad\text{in place of}\quad p - j,$$
#
# and that of $p$ and an earlier decoded $i$ uses $0$ in place of $p - i$.
#
# What the model can no longer know: how far it has come since the prompt,
# since $p$ is gone from all scores; and in which order it wrote what it wrote,
# since all decoded tokens stand at one place, the place of the prompt's first
# token. And to the prompt it has offsets below zero, which never occur in
# training, where a query only looks back. Nothing is raised and the prompt is
# read rightly, which is why such a cache may be mistaken for a weak model.

# %% exercise="missing-offset"
# B batch, T new tokens, S cached tokens, H heads, hd head width
def faulty_step(attention, X, cache):
    """Y (B, T, D) for new tokens X (B, T, D)."""
    q, k, v = attention.project(X)                           # an offset of 0
    if cache:
        k, v = (torch.cat([cache[name], new], dim=2)
                for name, new in (('k', k), ('v', v)))       # (B, H, S+T, hd)
    cache['k'], cache['v'] = k.clone(), v.clone()
    T, S = q.shape[2], k.shape[2] - q.shape[2]
    mask = torch.ones(T, S + T, device=X.device).tril(S).bool()
    Y = F.scaled_dot_product_attention(q, k, v, mask)
    return attention.W_o(Y.transpose(1, 2).flatten(2))

torch.manual_seed(0)
blk = d2l.GPT(97, 128, 4, 3).eval().blks[0]
with torch.inference_mode():
    X = blk.before_attention(torch.randn(1, 48, 128))
    both = []
    for step in (d2l.GPT.CausalAttention.forward_step, faulty_step):
        cache = {}
        both.append(torch.cat([step(blk.attention, x, cache) for x in
                               X.split([16] + 32 * [1], dim=1)], dim=1))
right, faulty = both
prompt, decoded = (right - faulty).abs().split([16, 32], dim=1)
deviation = decoded.max().item()
print(f'of outputs up to {right.abs().max():.1f}: prompt '
      f'{prompt.max():.1e}, decoded {deviation:.3f}')

def to_prefix(p, j):
    return 0 - j

def to_decoded(p, i):
    return 0 - 0

# %% [markdown] tags=["expected"]
# ```output
# of outputs up to ~2: prompt <1e-4, decoded >0.01
# ```

# %% [markdown]
# **On a checkpoint.** One function serves for both caches: what differs is
# the position that it is told. It adds a learned position where the model has
# them, and `project` rotates where the model rotates. The prompt is read
# once; both caches begin with it. Then 48 tokens follow, one by one, each
# with its own position or all with position 0, and the logits are made for
# all of them together.

# %% exercise="missing-offset"
model, encoding, name = d2l.load_checkpoint()
P, n = 512, {'small': 48, 'full': 512}[d2l.current_run().profile]
ids = encoding.encode_ordinary(d2l.read_text())[:P + n + 1]
X = torch.tensor([ids], device=d2l.try_gpu())

# B batch, T new tokens, D model width, V vocabulary
def through_blocks(X, caches, position):
    """Last hidden states (B, T, D) of new tokens X (B, T)."""
    H = model.token_emb(X)
    if model.pos == 'learned':
        H = H + model.pos_emb.weight[position:position + X.shape[1]]
    for blk, cache in zip(model.blks, caches, strict=True):
        Z = blk.before_attention(H)
        q, k, v = blk.attention.project(Z, Z, Z, position)
        if cache:
            k, v = (torch.cat([cache[name], new], dim=2)
                    for name, new in (('k', k), ('v', v)))
        cache['k'], cache['v'] = k, v
        # the prompt meets an empty cache, a single token may see everything
        Y = F.scaled_dot_product_attention(
            q, k, v, is_causal=X.shape[1] > 1, enable_gqa=True)
        H = blk.after_attention(
            H, blk.attention.W_o(Y.transpose(1, 2).flatten(2)))
    return H

def mean_loss(logits):
    """Mean nats of what follows positions P and later; logits (1, n, V)."""
    return F.cross_entropy(logits[0], X[0, P + 1:]).item()

with torch.inference_mode():
    full = mean_loss(model(X)[:, P:-1])
    prompt, losses = [{} for _ in model.blks], {}
    through_blocks(X[:, :P], prompt, 0)
    for which in ('correct', 'faulty'):
        caches, rows = [dict(cache) for cache in prompt], []
        for t in range(P, P + n):
            rows.append(through_blocks(X[:, t:t + 1], caches,
                                       t if which == 'correct' else 0))
        H = model.norm(torch.cat(rows, dim=1))               # (1, n, D)
        losses[which] = mean_loss(H @ model.token_emb.weight.T)
assert abs(losses['correct'] - full) < 1e-3, f'{losses}, one pass {full}'
print(f'{name}, {n} tokens after {P}: one pass {full:.2f}')
print(f'correct {losses["correct"]:.2f}, faulty {losses["faulty"]:.2f}')

# %% [markdown] tags=["expected"]
# ```output small smollm2 timemachine
# smollm2, 48 tokens after 512: one pass 3.29±0.02
# correct 3.29±0.02, faulty 5.15±0.02
# ```
# ```output small smollm2 sotu1898
# smollm2, 48 tokens after 512: one pass 4.11±0.02
# correct 4.11±0.02, faulty 5.80±0.02
# ```
# ```output full smollm2
# smollm2, 512 tokens after 512: one pass ~3
# correct ~3, faulty ~5
# ```
# ```output gpt2
# gpt2, ~48 tokens after 512: one pass ~4
# correct ~4, faulty ~5
# ```

# %% exercise="missing-offset"
d2l.attempt('missing-offset', step=d2l.try_step(faulty_step),
            deviation=deviation, to_prefix=to_prefix, to_decoded=to_decoded,
            losses=losses)

# %% [markdown] tags=["expected"]
# ```output
# missing-offset: right
#     step: right. It raises nothing, and the prompt is even right: a check
#         that reads only the prompt's logits would pass.
#     deviation: right. Thousands of times the rounding that the lesson found:
#         a comparison of logits sees it at once.
#     to_prefix: right. The distance no longer depends on p, and has the wrong
#         sign: the query seems to stand before the prompt's tokens.
#     to_decoded: right. All decoded tokens seem to stand at one place: what
#         they say can still be read, their order cannot.
#     losses: right. The model still reads all that was cached and raises
#         nothing; its loss alone says that something is wrong, and only next
#         to that of a pass without a cache.
# ```

# %% [markdown]
# On the novel SmolLM2 pays 3.29 nats for each of these 48 tokens, in one pass
# and with the correct cache, and 5.15 with the faulty one; on the address
# 4.11 and 5.80. PyTorch and JAX agree in all digits shown. On average, then,
# the token that comes is less than a fifth as likely as before, although the
# prompt was read rightly and all its keys and values are still there. A guess
# among all 49,152 tokens would cost 10.8, so much of the prompt is still put
# to use: words without their places. It is one passage of 48 tokens in each
# text, no more.
#
# In GPT-2 the mistake is made once, before the first block, and nothing is
# rotated. Each decoded token is then marked as the first of the text, in
# queries, keys and values alike; how much that costs we did not measure,
# since the figures here are those of SmolLM2.

# %% [markdown]
# ## What Generation Costs
#
# The first new token is written after a pass over the prompt alone, the $i$-th
# after a pass over the prompt and the $i - 1$ tokens written before. So the
# naive schedule reads
#
# $$P + (P + 1) + \dots + (P + T - 1) = TP + \frac{T(T - 1)}{2}$$
#
# tokens, at $2N$ FLOPs each. The cached schedule reads the prompt once, which
# gives the first token, and then feeds each new token to get the next. The
# last one is written and never fed: $P + T - 1$ tokens in all. For $T = 1$
# the two are the same.
#
# For $P = 3584$ and $T = 256$ these are 950,144 and 3,839 tokens, a ratio of
# 247.5. The book measured 13.4 against 59.5 tokens per second, a gain of 4.4.
#
# **Where the rest went.** FLOPs are not time. Both passes read the weights
# once, $4N$ bytes in 32 bits. The naive pass over 3584 tokens does
# $2N \cdot 3584$ FLOPs with them, 1792 per byte, far above the 83 at which
# the card's arithmetic takes over. The cached step does half a FLOP per byte
# and waits for memory:
#
# $$\frac{t_\text{naive}}{t_\text{step}}
# = \frac{2N \cdot 3584 / (83 \cdot 10^{12})}{4N / 10^{12}}
# = \frac{3584}{2 \cdot 83} \approx 21.6.$$
#
# So of a factor of 3584 in FLOPs at most 21.6 are left in time, for the
# cached step leaves the arithmetic units idle. The book's step is slower
# still than its bytes ask for, about ten milliseconds instead of half a
# one; the lesson on the roofline finds out why.

# %% exercise="generation-cost"
def naive_flops(N, P, T):
    """FLOPs of the naive schedule."""
    return 2 * N * (T * P + T * (T - 1) // 2)

def cached_flops(N, P, T):
    """FLOPs of the cached schedule."""
    return 2 * N * (P + T - 1)

ratio = naive_flops(1, 3584, 256) / cached_flops(1, 3584, 256)
step_gain = (2 * 3584 / 83e12) / (4 / 1e12)
print(f'ratio {ratio:.1f}, of one late pass to a step {step_gain:.1f}')
d2l.attempt('generation-cost', naive_flops=naive_flops,
            cached_flops=cached_flops, ratio=ratio, step_gain=step_gain)

# %% [markdown] tags=["expected"]
# ```output
# ratio 247.5, of one late pass to a step 21.6
# generation-cost: right
#     naive_flops: right. For no prompt to speak of it is the N T² of the
#         lesson; with a long prompt and few new tokens it is nearly 2 N P T.
#     cached_flops: right. As many tokens are read as the text is long, less
#         one: nothing that is to know the whole history could read fewer.
#     ratio: right. Nearly one for each new token, since the prompt is long:
#         the cached schedule costs hardly more than a single naive pass.
#     step_gain: right. A step does thousands of times fewer FLOPs at half a
#         FLOP per byte, and gains about twentyfold. The book measured four-
#         to fivefold end to end: a step does not reach even the rate that its
#         bytes allow, as the lesson on the roofline shows.
# ```
