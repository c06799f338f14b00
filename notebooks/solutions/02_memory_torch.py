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
import numpy as np
import torch
from torch.nn import functional as F

from d2l_ext import torch as d2l

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

# %% [markdown] tags=["backend-only"] why="PyTorch has views, and no donation"
# **What views hold.** `W_qkv` writes one buffer for all heads, $H$ of queries
# and $G$ each of keys and of values, and a view of any part keeps all of it.
# The value is a view: $H + 2G$ heads are held. A key that is not rotated is
# another view of the same buffer, which counts once. A rotated key is a new
# tensor: $G$ heads more. Needed are $2G$. So with $H = G$ the factor is 3/2
# with learned positions and 4/2 with rotary ones, and it grows with sharing.
#
# The first step concatenates. `cat` returns new tensors of just the rows that
# are needed, nothing refers to the fused buffers any more, and the factor is
# 1, for this step and all that follow. The lesson's `leak` measures all four.
#
# **A step in place.** The buffers have room for `n + 1` tokens. The step
# writes its row by a slice and attends to the filled part, which is a view:
# here a view is what we want, for it is all of the buffer that is in use.

# %% tags=["backend-only"] why="PyTorch has views, and no donation"
def buffers(b, slots):
    """Keys and values of one block, for any number of sequences."""
    return {name: torch.randn(b, H, slots, hd, device=device)
            for name in 'kv'}

def step_in_place(attention, X, cache, S):
    """Attend from one new token at position S; S tokens are in the cache."""
    q, k, v = attention.project(X, offset=S)                 # (B, H, 1, hd)
    for name, new in (('k', k), ('v', v)):
        cache[name][:, :, S:S + 1] = new
    k, v = (cache[name][:, :, :S + 1] for name in 'kv')
    Y = F.scaled_dot_product_attention(q, k, v)
    return attention.W_o(Y.transpose(1, 2).flatten(2))

def decode_in_place(X, caches):
    Z = model.token_emb(X)
    for blk, cache in zip(model.blks, caches, strict=True):
        Y = step_in_place(blk.attention, blk.before_attention(Z), cache, n)
        Z = blk.after_attention(Z, Y)
    return model.norm(Z) @ model.token_emb.weight.T

def decode_growing(X, caches):
    return model.forward_cached(X, [dict(cache) for cache in caches])

@torch.inference_mode()
def seconds_of(decode, slots):
    """The least time for each batch, in rounds until a line fits."""
    found = dict.fromkeys(batches, float('inf'))
    for b in rounds(found):
        X = torch.zeros(b, 1, dtype=torch.long, device=device)
        caches = [buffers(b, slots) for _ in range(L)]
        found[b] = min(found[b], d2l.timeit(
            lambda X=X, caches=caches: decode(X, caches), 4, min))
    return found

@torch.inference_mode()
def layer_peak(step, slots):
    attention, b = model.blks[0].attention, max(batches)
    X = torch.randn(b, 1, H * hd, device=device)
    return d2l.step_memory(lambda: step(attention, X, buffers(b, slots)))

with torch.inference_mode():
    token, caches = prompt[:, :1], [buffers(1, n) for _ in range(L)]
    room = [{name: torch.cat([x, x[:, :, :1]], dim=2)
             for name, x in cache.items()} for cache in caches]
    error = (decode_growing(token, caches) - decode_in_place(token, room)
             ).abs().max()
    assert error < 1e-3, f'growing and in place differ by {error:.1e}'

# %% exercise="cache-buffers" tags=["backend-only"] why="the bodies differ"
held = {}
for pos, toy in toys.items():
    held[pos], held[f'{pos}, a step later'] = leak(toy, 16, keeps['the view'])

def factor(H, G, rope):
    return (H + 2 * G + (G if rope else 0)) / (2 * G)

copied = line(seconds_of(decode_growing, n))
in_place = line(seconds_of(decode_in_place, n + 1))
peaks = {'context': n, 'batch': max(batches),
         'growing': layer_peak(lambda attention, X, cache:
                               attention.forward_step(X, cache), n),
         'in_place': layer_peak(lambda attention, X, cache:
                                step_in_place(attention, X, cache, n), n + 1)}
saved = peaks['growing'] - peaks['in_place']
print(f'saved at the peak: {saved / 2**20:.1f} MiB, one layer keeps '
      f'{d2l.cache_bytes(1, H, hd, n, max(batches)) / 2**20:.1f} MiB')
for name, fit in (('grown', copied), ('in place', in_place),
                  ('bytes alone', reading)):
    print(f'{name}: {1e3 * fit["t0"]:.1f} ms and {1e3 * fit["t1"]:.2f} ms for '
          'each sequence')
d2l.attempt('cache-buffers', held=held, factor=factor, copied=copied,
            reading=reading, peaks=peaks, in_place=in_place)

# %% [markdown] tags=["expected"]
# ```output small
# saved at the peak: 12.0±0.2 MiB, one layer keeps 12.0 MiB
# grown: ~84 ms and ~25 ms for each sequence
# in place: ~84 ms and ~12 ms for each sequence
# bytes alone: ~39 ms and ~1.49 ms for each sequence
# cache-buffers: right
#     held: right. The leak lasts from the prefill to the first step, whose
#         `cat` makes new tensors: a server whose prompts wait for their turn
#         pays for it all that time.
#     factor: right. The more query heads share a key, the worse the leak:
#         most of the fused buffer are queries, which nobody needs again.
#     copied: right. A step pays once for what all sequences share, and for
#         each sequence as much again as its cache and its arithmetic take.
#     reading: right. These are lower bounds, if the bandwidth is the best
#         that the machine has. What the measured line has above them is
#         arithmetic, copies, and the calls themselves.
#     peaks: right. At the worst moment one layer has its keys and values
#         twice. The other layers wait for their turn, so of the whole model
#         it is a twelfth.
#     in_place: right. The bytes that are kept are the same in both lines;
#         what differs is how many are written anew in each step.
# ```
#
# No run of ours has measured a GPU here; its times are placeholders.
#
# ```output full
# saved at the peak: 384.0±4 MiB, one layer keeps 384.0 MiB
# grown: ~0 ms and ~0 ms for each sequence
# in place: ~0 ms and ~0 ms for each sequence
# bytes alone: ~0 ms and ~0 ms for each sequence
# cache-buffers: right
#     held: right. The leak lasts from the prefill to the first step, whose
#         `cat` makes new tensors: a server whose prompts wait for their turn
#         pays for it all that time.
#     factor: right. The more query heads share a key, the worse the leak:
#         most of the fused buffer are queries, which nobody needs again.
#     copied: right. A step pays once for what all sequences share, and for
#         each sequence as much again as its cache and its arithmetic take.
#     reading: right. These are lower bounds, if the bandwidth is the best
#         that the machine has. What the measured line has above them is
#         arithmetic, copies, and the calls themselves.
#     peaks: right. At the worst moment one layer has its keys and values
#         twice. The other layers wait for their turn, so of the whole model
#         it is a twelfth.
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
# **What the buffer saves.** When the last layer's new tensors are there and
# the old ones are not yet gone, that layer is there twice: $n$ tokens of one
# layer, in all sequences. (The other layers have just grown by a row, as the
# buffers have.) The peak of the layer's step falls by that much, but for the
# few rows that the step makes besides, which is why the check allows two per
# cent. For each sequence $t_1$ loses a read and a write of its whole cache,
# in memory that is new: `cat` copies what it has to keep. $t_0$ is the same
# step in both, and how far its two estimates are apart says how much to trust
# them.
