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
from d2l_ext import jax as d2l

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
