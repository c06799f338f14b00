# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: How Fast Can It Go?
#
# They run after the notebook, in its kernel.

# %%
from d2l_ext import jax as d2l

# %% [markdown]
# ## Sharing What Is Read
#
# **Tokens.** A pass over $m$ tokens does $2Nm$ FLOPs and reads $4N$ bytes,
# once. It takes no longer than a pass over one token as long as arithmetic
# does not take longer than reading:
#
# $$\frac{2Nm}{83 \cdot 10^{12}} \le \frac{4N}{10^{12}}
# \quad\Longleftrightarrow\quad m \le 2 \cdot 83 = 166.$$
#
# The size of the model drops out. So the large model can check up to 166
# drafted tokens in the time in which it writes one. If a small model guesses
# even a few of them right, a step that would have been spent anyway yields
# several tokens. At 167 the pass is bound by arithmetic and each token costs.
#
# **Sequences.** Of the step with $b$ sequences we write two lists.
#
# | | FLOPs | bytes |
# |---|---|---|
# | products with weights | $2N$, $b$ times | $4N$, once |
# | scores and weighted sums | $4 L H d_h n$, $b$ times | |
# | keys and values | | $2 \cdot 4 L G d_h n$, $b$ times |
#
# So the intensity is
#
# $$I(b, n) = \frac{b\,(2N + 4 L H d_h n)}{4N + 8\, b\, L G d_h n}.$$
#
# Query heads count on the left, key-value heads on the right. For $n \to 0$
# it is $b/2$: a batch shares the weights, and 166 sequences would reach the
# ridge. But for $b \to \infty$ it does not grow without end,
#
# $$I(\infty, n) = \frac{2N + 4 L H d_h n}{8 L G d_h n}
# = \frac{N}{4 L G d_h n} + \frac{H}{2G},$$
#
# since each sequence brings a cache of its own, which nobody shares. At
# $n = 2048$ and $H = G = 12$ this is 2.1 FLOP/byte, hardly more than four
# times that of a single sequence. With $G$ shared heads the limit is $H/G$
# times as high: 6.4 for four heads, 26 for one. All of them lie below the
# ridge of 83: at this context decode waits for memory whatever the batch.

# %% exercise="shared-reads"
tokens = 2 * 83

def intensity(N, L, H, G, hd, b, n):
    """FLOP per byte of a decode step with b sequences of n tokens."""
    flops = b * (2 * N + 4 * L * H * hd * n)
    return flops / (4 * N + b * 2 * 4 * L * G * hd * n)

N, L, H, hd = 123_551_232, 12, 12, 64
one = intensity(N, L, H, H, hd, 1, 2048)
many = {G: N / (4 * L * G * hd * 2048) + H / (2 * G) for G in (12, 4, 1)}
print(f'one sequence {one:.2f} FLOP/byte, many '
      + ', '.join(f'{x:.1f} (G={G})' for G, x in many.items()))
d2l.attempt('shared-reads', tokens=tokens, intensity=intensity, one=one,
            many=many)

# %% [markdown] tags=["expected"]
# ```output
# one sequence 0.50 FLOP/byte, many 2.1 (G=12), 6.4 (G=4), 25.6 (G=1)
# shared-reads: right
#     tokens: right. Up to here a pass over m tokens takes as long as one: a
#         small model drafts a few tokens, the large one checks them all in a
#         single step, and each that it accepts is a step saved.
#     intensity: right. At a context near zero it is b / 2, as if there were
#         only weights; each cached token pulls it towards the intensity of
#         attention alone, H / G / 2.
#     one: right. With as many key-value heads as query heads it is one half
#         at any context: weights and cache both bring two FLOPs for four
#         bytes, so leaving the cache out would not have shown. It is less
#         than a hundredth of the ridge.
#     many: right. The limit is a constant over the number of key-value heads,
#         and none of these reaches the ridge of 83: at this context no batch
#         makes decode wait for arithmetic, and sharing heads is what brings
#         it closer.
# ```
