# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solutions: What the Cache Costs
#
# They run after the notebook, in its kernel.

# %%
import jax.numpy as jnp
import numpy as np

from d2l_ext import jax as d2l

# %% [markdown]
# ## The Cache of a Large Model
#
# One token of one sequence leaves, in each of 80 layers and for each of the
# $G$ key-value heads, a key and a value of 128 numbers of two bytes:
#
# $$2 \cdot 80 \cdot G \cdot 128 \cdot 1 \cdot 1 \cdot 2 = 40960\, G
# \text{ bytes}.$$
#
# The 64 query heads do not appear. For $G = 8$ that is 327,680 bytes, 320
# KiB or 0.33 MB; a head of its own for each query head would make it 2.5 MiB,
# a single head 40 KiB.
#
# The cache of $n$ tokens is as large as the weights at
#
# $$n = \frac{140 \cdot 10^9}{40960\, G} \approx \frac{3.42 \cdot 10^6}{G},$$
#
# which for the model as it is are 427,000 tokens, a hundred times its
# context. (The lesson's table has 421,001, from the exact number of
# parameters.) The number of layers and the width enter cache and weights
# both; the number of key-value heads enters, of the weights, only the two
# projections to keys and values.
#
# On the two cards the weights leave 20 GB, and a sequence of 4096 tokens
# takes $4096 \cdot 40960\, G$ bytes, 168 MB for each key-value head. A
# sequence that fits only in part cannot be served, so we round down: 1, 14
# and 119 sequences. Mixing units would have shown here: 20 GiB hold 16
# sequences of $G = 8$, and cards of 80 GiB even 23.

# %% exercise="cache-70b"
G = (64, 8, 1)
token_bytes = {g: 2 * 80 * g * 128 * 2 for g in G}
break_even = {g: 140e9 / token_bytes[g] for g in G}
sequences = {g: int((2 * 80e9 - 140e9) // (4096 * token_bytes[g])) for g in G}
d2l.attempt('cache-70b', token_bytes=token_bytes, break_even=break_even,
            sequences=sequences)

# %% [markdown] tags=["expected"]
# ```output
# cache-70b: right
#     token_bytes: right. A token of the model as it was built takes as much
#         memory as some 160,000 of its weights; sharing one key-value head
#         among eight query heads saved seven eighths of that.
#     break_even: right. With a head of its own for each query head, thirteen
#         contexts of the 4096 that the model is made for already weigh as
#         much as the model; as built, it takes more than a hundred.
#     sequences: right. This is what sharing heads is for: not one longer
#         text, but many users whose steps share each read of the weights.
# ```

# %% [markdown]
# What the numbers do not say: a serving system would not lay out 4096 tokens
# for a text that has 100 so far, so in practice more sequences share a card,
# as many as are long at the same time.

# %% [markdown]
# ## Buffers and Steps
#
# The fit first, since both notebooks need it twice. Each batch size gives an
# equation $t_0 + b\, t_1 = t$; the line by least squares is the solution of
# all of them. The least of several repetitions is the time with the fewest
# interruptions, and they come in rounds over all sizes, so that a busy minute
# does not fall on one of them. If $t_0$ comes out negative we measure again,
# up to twelve rounds: so a positive $t_0$ is a condition here and no finding.
# What the bytes would take: all weights are read once, including the
# embedding, which is the output layer as well; of the cache all blocks, keys
# and values, in 32 bits.

# %%
n, batches = sizes['decode'], sizes['batches']

def line(seconds):
    """A fit t0 + b t1 of seconds, {b: t}, as the check reads it."""
    A = np.stack([np.ones(len(seconds)), np.array(list(seconds))], axis=1)
    t0, t1 = np.linalg.lstsq(A, np.array(list(seconds.values())))[0]
    return {'context': n, 'seconds': seconds, 't0': t0, 't1': t1}

def rounds(seconds, most=12):
    """Batch sizes to time, again and again; twice, if nothing disturbs."""
    for i in range(most):
        if i < 2 or line(seconds)['t0'] <= 0:  # else too noisy
            yield from batches

bandwidth = max(d2l.read_bandwidth((400,), reps=3).values())
reading = {'context': n, 'bandwidth': bandwidth, 't0': weights / bandwidth,
           't1': d2l.cache_bytes(L, H, hd, n) / bandwidth}

# %% [markdown] tags=["backend-only"] why="JAX has donation, and no views"
# **The peak.** A compiled step has arguments, results and temporaries, and
# the plan says how many bytes of the results lie in memory of donated
# arguments. Without donation the new cache is a result of its own, so the two
# peaks differ by exactly one cache: keys and values, all blocks, all slots,
# all sequences.
#
# **The times.** The step that keeps the old cache can be called with the same
# buffers again and again. The one that donates cannot: its arguments are gone
# after the call, so each call has to take what the last one returned.

# %% tags=["backend-only"] why="JAX has donation, and no views"
def seconds_of(step):
    """The least time for each batch, in rounds until a line fits."""
    found = dict.fromkeys(batches, float('inf'))
    for b in rounds(found):
        X, cache = jnp.zeros((b, 1), int), list(d2l.init_cache(model, b, n))

        def decode(X=X, cache=cache):  # writes the last of n slots
            logits, *cache[:] = step(model, *cache, X, n - 1)
            return logits, cache

        found[b] = min(found[b], d2l.timeit(decode, 3, min))
    return found

# %% exercise="cache-buffers" tags=["backend-only"] why="the bodies differ"
steps = {'kept': d2l.jitted_chunk, 'donated': d2l.donated_chunk}
largest = max(batches)
args = *d2l.init_cache(model, largest, n), jnp.zeros((largest, 1), int), n - 1
donation = {'context': n, 'batch': largest,
            **{name: d2l.step_memory(step, model, *args)
               for name, step in steps.items()}}
saved = donation['kept'] - donation['donated']
print(f'saved at the peak: {saved / 2**20:.1f} MiB, the cache has '
      f'{d2l.cache_bytes(L, H, hd, n, largest) / 2**20:.1f} MiB')
copied, in_place = (line(seconds_of(step)) for step in steps.values())
for name, fit in (('kept', copied), ('donated', in_place),
                  ('bytes alone', reading)):
    print(f'{name}: {1e3 * fit["t0"]:.1f} ms and {1e3 * fit["t1"]:.2f} ms for '
          'each sequence')
d2l.attempt('cache-buffers', donation=donation, copied=copied,
            reading=reading, in_place=in_place)

# %% [markdown] tags=["expected"]
# ```output small
# saved at the peak: 144.0 MiB, the cache has 144.0 MiB
# kept: ~41 ms and ~49 ms for each sequence
# donated: ~57 ms and ~37 ms for each sequence
# bytes alone: ~51 ms and ~1.93 ms for each sequence
# cache-buffers: right
#     donation: right. The old cache is not needed after the step; giving it
#         away saves a second one, which a large batch could not afford.
#     copied: right. A step pays once for what all sequences share, and for
#         each sequence as much again as its cache and its arithmetic take.
#     reading: right. These are lower bounds, if the bandwidth is the best
#         that the machine has. What the measured line has above them is
#         arithmetic, copies, and the calls themselves.
#     in_place: right. The bytes that are kept are the same in both lines;
#         what differs is how many are written anew in each step.
# ```
#
# No run of ours has measured a GPU here; its times are placeholders.
#
# ```output full
# saved at the peak: 4608.0 MiB, the cache has 4608.0 MiB
# kept: ~0 ms and ~0 ms for each sequence
# donated: ~0 ms and ~0 ms for each sequence
# bytes alone: ~0 ms and ~0 ms for each sequence
# cache-buffers: right
#     donation: right. The old cache is not needed after the step; giving it
#         away saves a second one, which a large batch could not afford.
#     copied: right. A step pays once for what all sequences share, and for
#         each sequence as much again as its cache and its arithmetic take.
#     reading: right. These are lower bounds, if the bandwidth is the best
#         that the machine has. What the measured line has above them is
#         arithmetic, copies, and the calls themselves.
#     in_place: right. The bytes that are kept are the same in both lines;
#         what differs is how many are written anew in each step.
# ```

# %% [markdown]
# **The lines.** The times above are those of one core, beside other programs.
# Of $t_0$ the bytes alone would take half in PyTorch and about all in JAX, of
# $t_1$ a small part in both: the bytes of one sequence's cache are few at this
# context. So most of what a sequence adds is not the one read of its cache. It
# is copies of it, where they are made, and products with few rows, far below
# the rate of the machine. How much is which, these fits do not tell. On a GPU,
# whose ridge is far away, and at 2048 tokens the cache weighs more in $t_1$.
#
# That the points bend away from the line is no noise: a product with one row
# is done by another kernel than one with several, so time is not quite a line
# in $b$. The intercept, which lies outside of the points, suffers most.

# %% [markdown] tags=["backend-only"] why="the bodies differ"
# **What donation saves.** In memory one whole cache, not one layer's as when
# a PyTorch cache grows: all blocks are one array, and a function that must
# not touch its argument has to copy all of it. In time the same copy, a read
# and a write of the cache for each sequence, so $t_1$ falls. $t_0$ is the same
# step in both, and how far its two estimates are apart says how much to trust
# them.
