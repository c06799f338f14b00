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
import jax
import jax.numpy as jnp

from d2l_ext import jax as d2l

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
# B batch, T new tokens, S slots, H heads, hd head width
def faulty_step(attention, X, ks, vs, t):
    """Y (B, T, D) for new tokens X, and ks, vs with their rows."""
    q, k, v = attention.project(X)                           # an offset of 0
    ks = jax.lax.dynamic_update_slice(ks, k, (0, t, 0, 0))
    vs = jax.lax.dynamic_update_slice(vs, v, (0, t, 0, 0))
    rows, slots = jnp.arange(X.shape[1]), jnp.arange(ks.shape[1])
    mask = slots <= t + rows[:, None]                        # (T, S)
    Y = jax.nn.dot_product_attention(q, ks, vs, mask=mask[None, None])
    return attention.W_o(Y.reshape(X.shape)), ks, vs

def correct_step(attention, X, ks, vs, t):
    """The lesson's, for a model of one block."""
    Y, ks, vs = attention.forward_step(X, ks[None], vs[None], 0, t)
    return Y, ks[0], vs[0]

blk = d2l.GPT(97, 128, 4, 3).blks[0]
X = blk.before_attention(jax.random.normal(jax.random.key(0), (1, 48, 128)))
both = []
for step in map(jax.jit, (correct_step, faulty_step)):
    ks, vs = jnp.zeros((2, 1, 48, 4, 32))
    ys, starts = [], [0, *range(16, 49)]
    for t, end in zip(starts, starts[1:], strict=False):
        Y, ks, vs = step(blk.attention, X[:, t:end], ks, vs, t)
        ys.append(Y)
    both.append(jnp.concatenate(ys, axis=1))
right, faulty = both
prompt, decoded = jnp.split(jnp.abs(right - faulty), [16], axis=1)
deviation = decoded.max()
print(f'of outputs up to {jnp.abs(right).max():.1f}: prompt '
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
X = jnp.array([ids])

# B batch, T new tokens, S slots, D model width, V vocabulary
@jax.jit
def through_block(blk, H, ks, vs, t, position):
    """H (B, T, D) after a block, ks, vs with T rows from t on.

    All blocks have the same shapes: it is compiled for the prompt, and for
    one token.
    """
    Z = blk.before_attention(H)
    q, k, v = blk.attention.project(Z, Z, Z, position)
    ks = jax.lax.dynamic_update_slice(ks, k, (0, t, 0, 0))
    vs = jax.lax.dynamic_update_slice(vs, v, (0, t, 0, 0))
    rows, slots = jnp.arange(H.shape[1]), jnp.arange(ks.shape[1])
    mask = slots <= t + rows[:, None]                        # (T, S)
    Y = jax.nn.dot_product_attention(q, ks, vs, mask=mask[None, None])
    H = blk.after_attention(H, blk.attention.W_o(Y.reshape(H.shape)))
    return H, ks, vs

def through_blocks(X, caches, t, position):
    """Last hidden states (B, T, D) of new tokens X (B, T), and the cache."""
    H, new = model.token_emb(X), []
    if model.pos == 'learned':
        H = H + model.pos_emb(position + jnp.arange(X.shape[1]))
    for blk, (ks, vs) in zip(model.blks, caches, strict=True):
        H, ks, vs = through_block(blk, H, ks, vs, t, position)
        new.append((ks, vs))
    return H, new

def mean_loss(logits):
    """Mean nats of what follows positions P and later; logits (1, n, V)."""
    chances = jax.nn.log_softmax(logits[0])
    return -jnp.take_along_axis(chances, X[0, P + 1:, None], 1).mean().item()

# block by block, as a later lesson does: a whole model takes long to compile
full = mean_loss(d2l.forward_blocks(model, X, d2l.stock_attention)[:, P:-1])
empty = [(k, v) for k, v in zip(*d2l.init_cache(model, 1, P + n), strict=True)]
prompt, losses = through_blocks(X[:, :P], empty, 0, 0)[1], {}
for which in ('correct', 'faulty'):
    caches, rows = prompt, []
    for t in range(P, P + n):
        H, caches = through_blocks(X[:, t:t + 1], caches, t,
                                   t if which == 'correct' else 0)
        rows.append(H)
    H = model.norm(jnp.concatenate(rows, axis=1))            # (1, n, D)
    losses[which] = mean_loss(model.token_emb.attend(H))
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
