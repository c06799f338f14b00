# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # How Fast Can It Go?
#
# A decode step reads every weight and the whole cache to write one token. It
# cannot be faster than reading them. So before we measure a program, we can
# say what the best program would do on the same machine: bytes divided by
# bandwidth.
#
# In this lesson we measure two numbers of our machine, predict our own decode
# speed from them, measure it, and then go after the difference with
# experiments until we know where the time goes.

# %%
import functools

import jax
import jax.numpy as jnp
from flax import nnx

from d2l_ext import jax as d2l

run = d2l.current_run()
jax.config.update('jax_default_matmul_precision', 'highest')
print(run)

# %% [markdown] tags=["expected"]
# ```output
# run: profile {profile}, text {text}, checkpoint {checkpoint}
# ```

# %%
# megabytes, orders: of the arrays that we read, and of the matrices that we
# multiply, to measure the machine; contexts: tokens cached; prompt: prefilled;
# share: of the ceiling, what a decode step has to reach
sizes = {
    'small': dict(megabytes=(256, 512), orders=(512, 1024, 2048),
                  contexts=(128, 1024), prompt=512, share=0.05, reps=5),
    'full': dict(megabytes=(256, 1024), orders=(2048, 4096, 8192),
                 contexts=(512, 1024, 2048, 4096), prompt=2048, share=0.002,
                 reps=20),
}[run.profile]

# %% [markdown]
# ## Two Numbers of a Machine
#
# How many bytes per second can we read, and how many floating-point
# operations per second can we do? For the first we read arrays that do not
# fit into the caches of a processor, once by adding them up and once as the
# matrix of a matrix-vector product. For the second we multiply square
# matrices, $2n^3$ operations each. Other programs only ever make a run
# slower, so we take the best of several repeats, and the best of all ways as
# the machine's.

# %%
def read_bandwidth(megabytes, reps=10):  #@save
    """Bytes per second of the fastest plain read, for each array size."""
    rates, add_up, apply = {}, jax.jit(jnp.sum), jax.jit(jnp.matmul)
    for size in megabytes:
        W = jnp.ones((1024, size * 1000**2 // 4096))
        x = W[0]
        rates[size] = max(W.nbytes / d2l.timeit(read, reps, pick=min)
                          for read in (lambda W=W: add_up(W),
                                       lambda x=x, W=W: apply(W, x)))
    return rates

def matmul_rate(orders, reps=10):  #@save
    """fp32 FLOPs per second of square products, for each matrix order."""
    rates, multiply = {}, jax.jit(jnp.matmul)
    for n in orders:
        A = jnp.ones((n, n))
        rates[n] = 2 * n**3 / d2l.timeit(lambda A=A: multiply(A, A), reps,
                                         pick=min)
    return rates

# %%
reads = read_bandwidth(sizes['megabytes'])
products = matmul_rate(sizes['orders'])
for size, rate in reads.items():
    print(f'read {size} MB: {rate / 1e9:.1f} GB/s')
for n, rate in products.items():
    print(f'multiply {n} x {n}: {rate / 1e9:.0f} GFLOP/s')
bandwidth, flop_rate = max(reads.values()), max(products.values())
print(f'ridge: {d2l.ridge(flop_rate, bandwidth):.1f} FLOP/byte')

# %% [markdown] tags=["expected"]
# ```output small
# read 256 MB: ~28 GB/s
# read 512 MB: ~30 GB/s
# multiply 512 x 512: ~100 GFLOP/s
# multiply 1024 x 1024: ~110 GFLOP/s
# multiply 2048 x 2048: ~115 GFLOP/s
# ridge: ~3.9 FLOP/byte
# ```
#
# For `full` stand the limits of the book's card, which no run of ours has
# measured:
#
# ```output full
# read 256 MB: ~1000 GB/s
# read 1024 MB: ~1000 GB/s
# multiply 2048 x 2048: ~83000 GFLOP/s
# multiply 4096 x 4096: ~83000 GFLOP/s
# multiply 8192 x 8192: ~83000 GFLOP/s
# ridge: ~83 FLOP/byte
# ```

# %% [markdown]
# The quotient of the two is the *ridge*. A computation that does fewer
# operations per byte than that waits for memory, one that does more waits for
# arithmetic. Here are the same two numbers of some devices, from their data
# sheets, with ours below. The first card is the book's, which rounds to 83
# TFLOP/s and 1 TB/s.

# %%
def print_device(name, flop_rate, bandwidth, source):
    d2l.print_wrapped(
        f'{name}: {bandwidth / 1e9:.0f} GB/s, {flop_rate / 1e9:.0f} GFLOP/s, '
        f'ridge {d2l.ridge(flop_rate, bandwidth):.0f} ({source})')

for name, card in d2l.CARDS.items():
    print_device(name, card.flop_rate, card.bandwidth, card.source)
print_device('this machine', flop_rate, bandwidth, 'measured')

# %% [markdown] tags=["expected"]
# ```output
# RTX 4090: 1008 GB/s, 82600 GFLOP/s, ridge 82 (NVIDIA, Ada architecture white
#     paper, 2022)
# T4: 320 GB/s, 8100 GFLOP/s, ridge 25 (NVIDIA, T4 data sheet, 2019)
# RTX 3060 12GB: 360 GB/s, 12700 GFLOP/s, ridge 35 (NVIDIA, GeForce RTX 3060
#     specifications, 2021)
# A100 80GB SXM: 2039 GB/s, 19500 GFLOP/s, ridge 10 (NVIDIA, A100 data sheet,
#     2021)
# H100 80GB SXM: 3350 GB/s, 67000 GFLOP/s, ridge 20 (NVIDIA, H100 data sheet,
#     2023)
# H200 141GB: 4800 GB/s, 67000 GFLOP/s, ridge 14 (NVIDIA, H200 data sheet,
#     2024)
# Apple M2: 100 GB/s, 3600 GFLOP/s, ridge 36 (Apple, announcement of M2 with
#     10 GPU cores, 2022)
# this machine: ~21 GB/s, ~130 GFLOP/s, ridge ~6 (measured)
# ```

# %% [markdown]
# ## Counting Both Sides
#
# How many operations per byte does generation do? This quotient is called
# *arithmetic intensity*. We take a model of GPT-2's size in 32 bits and a
# context of 2048 tokens. Both phases read every weight once, and the keys and
# values of 2048 tokens come in (decode) or go out (prefill): the same bytes.
# The operations are $2N$ per new token, and for attention one product for the
# score and one for the weighted sum, for each pair of a query and a key it
# sees. (Prefill could do without the logits of all tokens but the last. Our
# PyTorch step computes them all, our JAX step only those of the last; below,
# each is credited with what it does.)

# %%
L, H, hd = 12, 12, 64
model = d2l.GPT(50257, L * hd, H, L, max_len=8192)
N = sum(x.size for x in jax.tree.leaves(model))

# %%
moved = d2l.bytes_moved(N, 4, d2l.cache_bytes(L, H, hd, n=2048))
for phase, new, cached in (('decode', 1, 2047), ('prefill', 2048, 0)):
    dense = d2l.dense_flops(N, new)
    flops = dense + d2l.attention_flops(L, H, hd, new, cached)
    print(f'{phase}: {dense / 1e6:.0f} MFLOP / {moved / 1e6:.0f} MB = '
          f'{d2l.intensity(dense, moved):.1f} FLOP/byte, with attention '
          f'{d2l.intensity(flops, moved):.1f}')

# %% [markdown] tags=["expected"]
# ```output
# decode: 247 MFLOP / 645 MB = 0.4 FLOP/byte, with attention 0.5
# prefill: 506066 MFLOP / 645 MB = 784.4 FLOP/byte, with attention 904.2
# ```

# %% [markdown]
# Decode lies below every ridge above, on a laptop and on an H200 alike;
# prefill lies above them all. So one is bound by reading and the other by
# arithmetic, and each should go as fast as *its* number allows.

# %% [markdown]
# ### Exercise: Sharing What Is Read
#
# *[paper], [code], about 25 minutes.*
#
# A read can be shared: by several tokens of one sequence, by several
# sequences, by several heads. Take a card with 83 TFLOP/s and 1 TB/s, and
# weights and cache in 32 bits.
#
# 1. Leave the cache out. What is the largest number of new tokens $m$ for
#    which a pass takes no longer than a pass over a single one? (Say why that
#    makes it cheap to check tokens that a smaller model has drafted.)
# 2. Count a decode step with the cache: $b$ sequences, each $n$ tokens long
#    with the token of this step, which attends to all $n$. The model has $N$
#    parameters, $L$ blocks, $H$ query heads and $G$ key-value heads of width
#    $d_h$. Write the intensity as a function, in FLOP per byte.
# 3. What is it for the model above, with $H = G = 12$, at $n = 2048$ for one
#    sequence? And where does it go for $b \to \infty$, if the twelve query
#    heads have 12, 4 or 1 key-value heads? (Leave $N$ as it is.)

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# A pass takes as long as the slower of two things: its FLOPs at 83 TFLOP/s,
# or its bytes at 1 TB/s. With the cache left out only one of the two grows
# with the number of tokens. Where do they meet?
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# For the step with b sequences make two lists, FLOPs and bytes, and mark in
# each what is there once and what is there b times. What is counted by query
# heads, and what by key-value heads?
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# For b → ∞ divide both lists by b. What was there once is gone; the heads H
# and G are left in different places.
#
# </details>

# %% exercise="shared-reads"
tokens = ...                                 # the largest m

def intensity(N, L, H, G, hd, b, n):
    """FLOP per byte of a decode step with b sequences of n tokens."""
    ...

one = ...                                    # FLOP per byte for b = 1
many = {12: ..., 4: ..., 1: ...}             # key-value heads: FLOP per byte

# %%
d2l.attempt('shared-reads', tokens=tokens, intensity=intensity, one=one,
            many=many)

# %% [markdown] tags=["expected"]
# ```output
# shared-reads: not attempted
# ```

# %% [markdown]
# ## Predict, Then Measure
#
# First the prediction. `roofline_seconds` is the larger of two times, that of
# the operations at our rate and that of the bytes at our bandwidth.

# %%
def work(n, new=1, batch=1):
    """FLOPs and bytes of a pass after which n tokens are cached."""
    head = model.token_emb.embedding.size  # applied to the last token only
    flops = d2l.dense_flops(N - head, new) + d2l.dense_flops(head, 1)
    flops += d2l.attention_flops(L, H, hd, new, n - new)
    cache = d2l.cache_bytes(L, H, hd, n, batch)
    return batch * flops, d2l.bytes_moved(N, 4, cache)

# %%
def ceiling(n, new=1, batch=1):
    """Tokens per second that the machine allows."""
    return new * batch / d2l.roofline_seconds(
        *work(n, new, batch), flop_rate, bandwidth)

# %%
def decode_seconds(model, n, batch=1, room=None):
    """Median seconds of a step in the loop, after n tokens."""
    cache = d2l.init_cache(model, batch, room or n + 1)
    X = jnp.zeros((batch, 1), jnp.int32)

    def step():
        nonlocal cache
        logits, *cache = d2l.donated_chunk(model, *cache, X, n)
        return logits

    return d2l.timeit(step, sizes['reps'])

def prefill_seconds(n):
    """Seconds to read a prompt of n tokens."""
    cache, X = d2l.init_cache(model, 1, n), jnp.zeros((1, n), jnp.int32)

    def step():
        nonlocal cache
        logits, *cache = d2l.donated_chunk(model, *cache, X, 0)
        return logits

    return d2l.timeit(step, reps=1)

# %%
contexts, n = sizes['contexts'], sizes['prompt']
seconds = {n: decode_seconds(model, n) for n in contexts}
prefill = n / prefill_seconds(n)
rows = [(f'decode n={n:5}', 1 / t, ceiling(n)) for n, t in seconds.items()]
rows.append((f'prefill {n} tokens', prefill, ceiling(n, new=n)))
for name, rate, most in rows:
    print(f'{name}: ceiling {most:.0f} tokens/s, measured {rate:.1f}, '
          f'{100 * rate / most:.0f} % of it')

# %% [markdown] tags=["expected"]
# ```output small
# decode n= 128: ceiling ~60 tokens/s, measured ~24, ~39 % of it
# decode n= 1024: ceiling ~53 tokens/s, measured ~14, ~25 % of it
# prefill 512 tokens: ceiling ~515 tokens/s, measured ~480, ~93 % of it
# ```
#
# For `full` the book gives the prefill and, at 2048, the decode rate; the
# other decode rates follow from its latencies, and the ceilings from its
# card. No run of ours has confirmed them.
#
# ```output full
# decode n= 512: ceiling ~1880 tokens/s, measured ~92, ~5 % of it
# decode n= 1024: ceiling ~1750 tokens/s, measured ~93, ~5 % of it
# decode n= 2048: ceiling ~1550 tokens/s, measured ~82, ~5 % of it
# decode n= 4096: ceiling ~1250 tokens/s, measured ~90, ~7 % of it
# prefill 2048 tokens: ceiling ~290000 tokens/s, measured ~64685, ~22 % of it
# ```

# %% [markdown]
# Reading a prompt handles many times more tokens per second than writing
# does, with the same weights on the same machine. And decode, whose ceiling
# is so much lower, does not even reach that. The book's GPU gets a twentieth
# of it.
#
# Nobody beats a ceiling. We hold ourselves to that, with room for a machine
# that was busy while we measured it, and to prefill being many times faster.

# %%
decode = 1 / seconds[contexts[-1]]
assert prefill > 4 * decode, f'prefill {prefill}, decode {decode} tokens/s'
for name, rate, most in rows:
    assert sizes['share'] < rate / most < 1.5, (
        f'{name}: {rate:.2f} tokens/s, the ceiling is {most:.2f}')

# %% [markdown]
# Several sequences at once share each weight that is read, so a batch raises
# the intensity. How much of that do we get? Beside whole steps we time the
# products with weights alone, for as many rows as there are sequences.

# %%
@jax.jit
def weight_products(model, x, y):
    results = [model.token_emb.attend(x)]
    for blk in model.blks:
        attention, ffn = blk.attention, blk.ffn
        for W in (attention.W_qkv, attention.W_o, ffn.W_g, ffn.W_1):
            results.append(W(x))
        results.append(ffn.W_2(y))
    return results  # all of them, else XLA would leave some out

def weights_alone(rows=1):
    """Seconds for every product with weights of a step, nothing else."""
    x, y = (jnp.ones((rows, 1, d))
            for d in (H * hd, model.blks[0].ffn.W_2.in_features))
    return d2l.timeit(lambda: weight_products(model, x, y), sizes['reps'])

# %%
n, by_batch = contexts[0], {}
for batch in (1, 16):
    by_batch[batch] = decode_seconds(model, n, batch)
    rate, most = batch / by_batch[batch], ceiling(n, batch=batch)
    print(f'batch {batch:2}: {rate:.1f} tokens/s, '
          f'{100 * rate / most:.0f} % of the ceiling')
    print(f'    a step {1e3 * by_batch[batch]:.0f} ms, its products with '
          f'weights {1e3 * weights_alone(batch):.0f} ms')
assert by_batch[16] < 16 * by_batch[1], (
    f'16 sequences {by_batch[16]:.3f} s, one {by_batch[1]:.3f} s')

# %% [markdown] tags=["expected"]
# ```output
# batch 1: ~25 tokens/s, ~50 % of the ceiling
#     a step ~40 ms, its products with weights ~32 ms
# batch 16: ~75 tokens/s, ~14 % of the ceiling
#     a step ~215 ms, its products with weights ~135 ms
# ```

# %% [markdown]
# Sixteen sequences take sixteen times the operations and less than sixteen
# times as long: reading the weights is paid once. On the two cores of the
# block above the share of the ceiling falls nevertheless. Sixteen sequences
# already lie near the ridge, where arithmetic begins to count as well, and
# the products alone run far below both limits.
#
# Both phases in one picture. The roofline is the most that the machine does
# at each intensity: a slope where memory sets the pace, a plateau where
# arithmetic does.

# %%
def placed(t, *args):
    """Intensity (FLOP/byte) and rate (GFLOP/s) of a pass of t seconds."""
    flops, moved = work(*args)
    return d2l.intensity(flops, moved), flops / t / 1e9

n = sizes['prompt']
points = [[placed(t, n_) for n_, t in seconds.items()],
          [placed(t, contexts[0], 1, b) for b, t in by_batch.items()],
          [placed(n / prefill, n, n)]]
xs, ys = zip(*(zip(*p, strict=True) for p in points), strict=True)
edge = d2l.ridge(flop_rate, bandwidth)
reach = sorted([2.0**i for i in range(-2, 11)] + [edge])
roof = [d2l.attainable(i, flop_rate, bandwidth) / 1e9 for i in reach]
d2l.plot([reach, *xs], [roof, *ys], xscale='log', yscale='log',
         xlabel='arithmetic intensity (FLOP/byte)', ylabel='rate (GFLOP/s)',
         fmts=('-', 'o', '^', 's'), figsize=(5, 3.5), legend=[
             'roofline', 'decode', 'decode in batches', 'prefill'])

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# ```

# %% [markdown]
# ## It Is the Bytes
#
# That decode waits for memory is so far only a count. We test it with two
# more models of twelve blocks and twelve heads. Their steps do the same
# things in the same order; what differs is the width, and with it the bytes.
# (The operations shrink along with them, so this alone could not tell the two
# apart. The batch did: sixteen times the operations on the same weights.) One
# moves about half as much as our model. The other is so narrow that it fits
# into the processor's caches: its time is that of a step that moves nothing.

# %%
narrow, half = (d2l.GPT(97, 12 * width, H, L, max_len=8192)
                for width in (2, 54))
moved = [sum(x.nbytes for x in jax.tree.leaves(m)) for m in (narrow, half)]
steps = [decode_seconds(m, 16) for m in (narrow, half)]
moved.append(work(contexts[0])[1])
steps.append(decode_seconds(model, contexts[0]))

# %%
for size, t in zip(moved, steps, strict=True):
    print(f'{size / 1e6:.1f} MB: {1e3 * t:.1f} ms per step')
more = moved[2] / moved[1]
longer = (steps[2] - steps[0]) / (steps[1] - steps[0])
print(f'{more:.1f} times the bytes: {longer:.1f} times the time, the '
      'narrow model\'s taken off')
bytes_show = steps[2] > 2 * steps[0]  # not where starting work takes it all
assert not bytes_show or 0.5 < longer / more < 2, (
    f'{more:.2f} times the bytes, {longer:.2f} times the time')
d2l.plot([size / 1e6 for size in moved],
         [[1e3 * t for t in steps],
          [1e3 * size / bandwidth for size in moved]],
         xlabel='weights and cache (MB)', ylabel='time per step (ms)',
         legend=['measured', 'bytes / bandwidth'])

# %% [markdown] tags=["expected"]
# ```output small
# 0.3 MB: ~4 ms per step
# 242.2 MB: ~22 ms per step
# 503.6 MB: ~41 ms per step
# 2.1 times the bytes: ~2.0 times the time, the narrow model's taken off
# [figure]
# ```
#
# The book's step of the large model takes about ten milliseconds; the others,
# no run of ours has measured on a GPU.
#
# ```output full
# 0.3 MB: ~10 ms per step
# 242.2 MB: ~10 ms per step
# 532.0 MB: ~10 ms per step
# 2.2 times the bytes: ~1 times the time, the narrow model's taken off
# [figure]
# ```

# %% [markdown]
# Twice the bytes, about twice the time, and two things besides: a start at a
# few milliseconds, and a slope steeper than the bandwidth asks for.
#
# ## Where the Rest Goes
#
# We split the step of the large model into three parts and time each alone:
# the products with weights; the cache, which is appended to and attended to;
# and the rest, for which the narrow model stands, since it runs the same code
# on next to no data.

# %%
@functools.partial(jax.jit, donate_argnames=('ks', 'vs'))
def append_and_attend(ks, vs, row, t):
    mask = (jnp.arange(ks.shape[2]) <= t)[None, None, None]
    for i in range(L):
        ks = jax.lax.dynamic_update_slice(ks, row[None], (i, 0, t, 0, 0))
        vs = jax.lax.dynamic_update_slice(vs, row[None], (i, 0, t, 0, 0))
        row = jax.nn.dot_product_attention(row, ks[i], vs[i], mask=mask)
    return row, ks, vs

def cache_alone(n):
    """Seconds to append a row and attend in every block, nothing else."""
    cache, row = d2l.init_cache(model, 1, n + 1), jnp.ones((1, 1, H, hd))

    def step():
        nonlocal cache
        y, *cache = append_and_attend(*cache, row, n)
        return y

    return d2l.timeit(step, sizes['reps'])

# %%
n = contexts[-1]
whole, cache = decode_seconds(model, n), d2l.cache_bytes(L, H, hd, n)
parts = {'weights': (4 * N / bandwidth, weights_alone()),
         'cache': (cache / bandwidth, cache_alone(n)), 'rest': (0, steps[0])}
for name, (least, t) in parts.items():
    print(f'{name:8} {1e3 * least:.1f} ms at full bandwidth, '
          f'measured {1e3 * t:.1f} ms')
total = sum(t for _, t in parts.values())
print(f'sum {1e3 * total:.1f} ms, a whole step {1e3 * whole:.1f} ms')
assert 0.4 < total / whole < 2.5, f'parts {total:.3f} s, step {whole:.3f} s'

# %% [markdown] tags=["expected"]
# ```output
# weights ~20 ms at full bandwidth, measured ~30 ms
# cache ~3.0 ms at full bandwidth, measured ~35 ms
# rest 0.0 ms at full bandwidth, measured ~4 ms
# sum ~69 ms, a whole step ~72 ms
# ```

# %% [markdown]
# The three parts add up to the step, roughly: starting the calls is counted
# twice, and a shared machine is never quiet. So no large fourth part is
# hidden. Each of the three can be taken apart with an experiment.
#
# ### The Weights
#
# A product of one row with a matrix reads each weight once, and yet it does
# not run at the bandwidth that we measured. A library has several kernels,
# and picks one by the shapes and by how the matrix lies in memory. Here is
# the same product with the matrix stored either way, and the largest matrix
# of the model, the embedding, which is also the output head and stored as
# `(out, in)`.

# %%
x = jnp.ones((1, 768))
stored = {'(out, in)': ([jnp.ones((2048, 768)) for _ in range(36)],
                        jax.jit(lambda x, Ws: [x @ W.T for W in Ws])),
          '(in, out)': ([jnp.ones((768, 2048)) for _ in range(36)],
                        jax.jit(lambda x, Ws: [x @ W for W in Ws]))}
for name, (matrices, apply) in stored.items():
    t = d2l.timeit(lambda Ws=matrices, f=apply: f(x, Ws), pick=min)
    rate = sum(W.nbytes for W in matrices) / t
    print(f'one row, weights stored {name}: {rate / 1e9:.1f} GB/s')
W, apply = model.token_emb.embedding[...], jax.jit(lambda x, W: x @ W.T)
rate = W.nbytes / d2l.timeit(lambda: apply(x, W), pick=min)
print(f'one row, output head: {rate / 1e9:.1f} GB/s')
print(f'plain read: {bandwidth / 1e9:.1f} GB/s')

# %% [markdown] tags=["expected"]
# ```output
# one row, weights stored (out, in): ~18 GB/s
# one row, weights stored (in, out): ~22 GB/s
# one row, output head: ~13 GB/s
# plain read: ~24 GB/s
# ```

# %% [markdown] tags=["backend-only"] why="about nnx.Linear"
# The two ways differ less here than in PyTorch. Together, in one compiled
# program, the products run slower than any of these alone (compare the parts
# above). Why is still open here; the lesson on fast decoding looks further.

# %% [markdown]
# ### The Cache
#
# Attention has to read the cache once. Whatever else touches it comes on top.

# %% [markdown] tags=["backend-only"] why="a torch cache is always full"
# The buffer has its final size from the start, and the mask hides what is not
# filled. But it is only masked: the step reads, and as the last lesson showed
# even copies, all of it. So the time depends on the room, not on the tokens.
# Without donation the step has to write a whole new cache besides.

# %% tags=["backend-only"] why="a torch cache is always full"
def undonated_seconds(n):
    """Seconds of a step that leaves the old buffers as they were."""
    ks, vs = d2l.init_cache(model, 1, n + 1)
    X = jnp.zeros((1, 1), jnp.int32)
    return d2l.timeit(lambda: d2l.jitted_chunk(model, ks, vs, X, n), reps=3)

few, many = contexts[0], contexts[-1]
short, long, full = (decode_seconds(model, few), decode_seconds(
    model, few, room=many + 1), decode_seconds(model, many))
print(f'{few} tokens in room for {few + 1}: {1e3 * short:.0f} ms')
print(f'{few} tokens in room for {many + 1}: {1e3 * long:.0f} ms')
print(f'{many} tokens in room for {many + 1}: {1e3 * full:.0f} ms')
print(f'the same, not donated: {1e3 * undonated_seconds(many):.0f} ms')
assert not bytes_show or long > 1.15 * short, (
    f'more room {long:.4f} s, less {short:.4f} s')

# %% [markdown] tags=["expected"]
# ```output small
# 128 tokens in room for 129: ~42 ms
# 128 tokens in room for 1025: ~75 ms
# 1024 tokens in room for 1025: ~74 ms
# the same, not donated: ~118 ms
# ```
#
# The book's steps take about eleven milliseconds; no run of ours has measured
# these on a GPU.
#
# ```output full
# 512 tokens in room for 513: ~11 ms
# 512 tokens in room for 4097: ~11 ms
# 4096 tokens in room for 4097: ~11 ms
# the same, not donated: ~11 ms
# ```

# %% [markdown]
# ### The Rest
#
# What is left is the cost of asking for work.

# %% [markdown] tags=["backend-only"] why="PyTorch has no jit here"
# A compiled step is started once, so the narrow model is fast. But how it is
# called matters. `nnx.jit` looks through the whole model before and after
# each call, so that the function may change it, and hands back every
# parameter as a result. `jax.jit` takes the model as the tree of arrays that
# it is. One can also split it once, outside the loop, and pass the bare
# state.

# %% tags=["backend-only"] why="PyTorch has no jit here"
def call_seconds(step, first, lm):
    """Seconds of a step on a full cache, old buffers kept."""
    args = *d2l.init_cache(lm, 1, many + 1), jnp.zeros((1, 1), jnp.int32)
    return d2l.timeit(lambda: step(first, *args, many), reps=3)

graphdef, state = nnx.split(model)
split = jax.jit(lambda state, *args: d2l.forward_chunk(
    nnx.merge(graphdef, state), *args))
traversed = nnx.jit(d2l.forward_chunk)
times = {'nnx.jit': call_seconds(traversed, model, model),
         'jax.jit': call_seconds(d2l.jitted_chunk, model, model),
         'jax.jit, split state': call_seconds(split, state, model),
         'nnx.jit, narrow model': call_seconds(traversed, narrow, narrow)}
for way, t in times.items():
    print(f'{way}: {1e3 * t:.1f} ms per step')
assert times['jax.jit'] < times['nnx.jit'], times

# %% [markdown] tags=["expected"]
# ```output
# nnx.jit: ~190 ms per step
# jax.jit: ~75 ms per step
# jax.jit, split state: ~75 ms per step
# nnx.jit, narrow model: ~27 ms per step
# ```

# %% [markdown] tags=["backend-only"] why="PyTorch has no jit here"
# The search alone costs some twenty milliseconds, as the narrow model shows.
# The rest of the difference is the way back: parameters that a compiled
# function returns are copied, all of them, at each step.

# %% [markdown]
# ## What This Shows, and What It Does Not
#
# * Bytes over bandwidth is a ceiling that can be worked out before a line of
#   code is written. It tells two things apart that look alike: a slow
#   program, and a fast one that is asked for the impossible.
# * Decode is bound by bytes: its time grows with the bytes of the weights,
#   while sixteen times the operations on the same weights cost far less than
#   sixteen times as much. Prefill does as many operations per token and many
#   more tokens per second.
# * What is missing to the ceiling has an address: kernels that read below the
#   bandwidth, a cache that is copied, the cost of starting work. Their sum is
#   the step, within a factor that we state; timings on a shared machine do
#   not carry more.
# * Our bandwidth is the best of two plain loops, so the true ceiling may be
#   higher. Shares of it are for comparing programs on one machine, not
#   machines.
# * We changed nothing yet. Sharing heads moves fewer bytes, which is the next
#   lesson; the lesson on fast decoding takes on the three parts one by one.
