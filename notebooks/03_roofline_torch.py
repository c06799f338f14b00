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
import torch
from torch.nn import functional as F

from d2l_ext import torch as d2l

run = d2l.current_run()
device = d2l.try_gpu()
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
    rates = {}
    for size in megabytes:
        W = torch.ones(1024, size * 1000**2 // 4096, device=d2l.try_gpu())
        x = W[:, 0]
        rates[size] = max(W.nbytes / d2l.timeit(read, reps, pick=min)
                          for read in (W.sum, lambda x=x, W=W: x @ W))
    return rates

def matmul_rate(orders, reps=10):  #@save
    """fp32 FLOPs per second of square products, for each matrix order."""
    rates = {}
    for n in orders:
        A = torch.ones(n, n, device=d2l.try_gpu())
        rates[n] = 2 * n**3 / d2l.timeit(lambda A=A: A @ A, reps, pick=min)
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
# read 256 MB: ~20 GB/s
# read 512 MB: ~20 GB/s
# multiply 512 x 512: ~105 GFLOP/s
# multiply 1024 x 1024: ~110 GFLOP/s
# multiply 2048 x 2048: ~100 GFLOP/s
# ridge: ~5.5 FLOP/byte
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
model = d2l.GPT(50257, L * hd, H, L, max_len=8192).to(device).eval()
N = sum(p.numel() for p in model.parameters())

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
    flops = d2l.dense_flops(N, new) + d2l.attention_flops(
        L, H, hd, new, n - new)
    cache = d2l.cache_bytes(L, H, hd, n, batch)
    return batch * flops, d2l.bytes_moved(N, 4, cache)

# %%
def ceiling(n, new=1, batch=1):
    """Tokens per second that the machine allows."""
    return new * batch / d2l.roofline_seconds(
        *work(n, new, batch), flop_rate, bandwidth)

# %%
@torch.inference_mode()
def decode_seconds(model, n, batch=1):
    """Median seconds of a step in the loop, after about n tokens."""
    shape = batch, H, n, model.norm.weight.numel() // H
    caches = [{name: torch.randn(shape, device=device) for name in 'kv'}
              for blk in model.blks]
    X = torch.zeros(batch, 1, dtype=torch.long, device=device)
    return d2l.timeit(lambda: model.forward_cached(X, caches), sizes['reps'])

@torch.inference_mode()
def prefill_seconds(n):
    """Seconds to read a prompt of n tokens."""
    X = torch.zeros(1, n, dtype=torch.long, device=device)
    return d2l.timeit(lambda: model.forward_cached(
        X, [{} for _ in model.blks]), reps=1)

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
# decode n= 128: ceiling ~45 tokens/s, measured ~14, ~31 % of it
# decode n= 1024: ceiling ~40 tokens/s, measured ~10, ~25 % of it
# prefill 512 tokens: ceiling ~530 tokens/s, measured ~295, ~56 % of it
# ```
#
# For `full` the book gives the prefill and, at 2048, the decode rate; the
# other decode rates follow from its latencies, and the ceilings from its
# card. No run of ours has confirmed them.
#
# ```output full
# decode n= 512: ceiling ~1880 tokens/s, measured ~102, ~5 % of it
# decode n= 1024: ceiling ~1750 tokens/s, measured ~102, ~5 % of it
# decode n= 2048: ceiling ~1550 tokens/s, measured ~72, ~5 % of it
# decode n= 4096: ceiling ~1250 tokens/s, measured ~84, ~7 % of it
# prefill 2048 tokens: ceiling ~290000 tokens/s, measured ~54992, ~19 % of it
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
@torch.inference_mode()
def weights_alone(rows=1):
    """Seconds for every product with weights of a step, nothing else."""
    x, y = (torch.randn(rows, 1, d, device=device)
            for d in (H * hd, model.blks[0].ffn.W_2.in_features))

    def products():
        for blk in model.blks:
            attention, ffn = blk.attention, blk.ffn
            for W in (attention.W_qkv, attention.W_o, ffn.W_g, ffn.W_1):
                W(x)
            ffn.W_2(y)
        x @ model.token_emb.weight.T

    return d2l.timeit(products, sizes['reps'])

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
# batch 1: ~18 tokens/s, ~38 % of the ceiling
#     a step ~56 ms, its products with weights ~48 ms
# batch 16: ~77 tokens/s, ~14 % of the ceiling
#     a step ~208 ms, its products with weights ~150 ms
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
narrow, half = (d2l.GPT(97, 12 * width, H, L, max_len=8192).to(device).eval()
                for width in (2, 54))
moved = [sum(p.nbytes for p in m.parameters()) for m in (narrow, half)]
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
# 0.3 MB: ~8 ms per step
# 242.2 MB: ~36 ms per step
# 503.6 MB: ~68 ms per step
# 2.1 times the bytes: ~2.1 times the time, the narrow model's taken off
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
@torch.inference_mode()
def cache_alone(n):
    """Seconds to append a row and attend in every block, nothing else."""
    caches = [[torch.randn(1, H, n, hd, device=device) for _ in 'kv']
              for _ in range(L)]
    row = torch.randn(1, H, 1, hd, device=device)

    def append_and_attend():
        for cache in caches:
            cache[:] = [torch.cat([x, row], dim=2) for x in cache]
            F.scaled_dot_product_attention(row, *cache)

    return d2l.timeit(append_and_attend, sizes['reps'])

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
# weights ~21 ms at full bandwidth, measured ~48 ms
# cache ~3.2 ms at full bandwidth, measured ~16 ms
# rest 0.0 ms at full bandwidth, measured ~8 ms
# sum ~72 ms, a whole step ~80 ms
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
x = torch.randn(1, 768, device=device)
stored = {'(out, in)': [torch.randn(2048, 768, device=device).T
                        for _ in range(36)],
          '(in, out)': [torch.randn(768, 2048, device=device)
                        for _ in range(36)]}
with torch.inference_mode():
    for name, matrices in stored.items():
        t = d2l.timeit(lambda Ws=matrices: [x @ W for W in Ws], pick=min)
        rate = sum(W.nbytes for W in matrices) / t
        print(f'one row, weights stored {name}: {rate / 1e9:.1f} GB/s')
    W = model.token_emb.weight
    rate = W.nbytes / d2l.timeit(lambda: x @ W.T, pick=min)
print(f'one row, output head: {rate / 1e9:.1f} GB/s')
print(f'plain read: {bandwidth / 1e9:.1f} GB/s')

# %% [markdown] tags=["expected"]
# ```output
# one row, weights stored (out, in): ~9 GB/s
# one row, weights stored (in, out): ~12 GB/s
# one row, output head: ~9 GB/s
# plain read: ~21 GB/s
# ```

# %% [markdown] tags=["backend-only"] why="about nn.Linear"
# `nn.Linear` stores `(out, in)`, which for a single row on the CPU is the
# slower way, and that explains a good part of the gap. The lesson on fast
# decoding changes it.

# %% [markdown]
# ### The Cache
#
# Attention has to read the cache once. Whatever else touches it comes on top.

# %% [markdown] tags=["backend-only"] why="a JAX cache does not grow"
# Our cache grows by `cat`: each step allocates new memory for all keys and
# values, reads the old ones, and writes them again. Writing one row into a
# buffer that is there already touches only that row.

# %% tags=["backend-only"] why="a JAX cache does not grow"
@torch.inference_mode()
def append_seconds(n):
    """Seconds to add a row to all keys and values: (cat, slice)."""
    row = torch.randn(1, H, 1, hd, device=device)
    grown = [torch.randn(1, H, n, hd, device=device) for _ in range(2 * L)]
    fixed = [torch.randn(1, H, n + 1, hd, device=device)
             for _ in range(2 * L)]

    def concatenate():
        grown[:] = [torch.cat([x, row], dim=2) for x in grown]

    def write():
        for x in fixed:
            x[:, :, n:] = row

    return (d2l.timeit(concatenate, pick=min), d2l.timeit(write, pick=min))

for n in contexts:
    cat, cut = append_seconds(n)
    print(f'n={n:5}: cat {1e3 * cat:.2f} ms, slice {1e3 * cut:.2f} ms')
assert not bytes_show or cut < cat / 2, (
    f'slice {cut:.6f} s, cat {cat:.6f} s at n={n}')

# %% [markdown] tags=["expected"]
# ```output small
# n= 128: cat ~0.6 ms, slice ~0.1 ms
# n= 1024: cat ~6 ms, slice ~0.1 ms
# ```
#
# No run of ours has measured a GPU here; the numbers are placeholders.
#
# ```output full
# n= 512: cat ~0 ms, slice ~0 ms
# n= 1024: cat ~0 ms, slice ~0 ms
# n= 2048: cat ~0 ms, slice ~0 ms
# n= 4096: cat ~0 ms, slice ~0 ms
# ```

# %% [markdown]
# ### The Rest
#
# What is left is the cost of asking for work.

# %% [markdown] tags=["backend-only"] why="JAX starts one compiled program"
# Python asks for each operation here, and each has to be found, checked and
# started, whatever its size. `Allocations` of the last lesson sees them all,
# so we can count.

# %% tags=["backend-only"] why="JAX starts one compiled program"
X = torch.zeros(1, 1, dtype=torch.long, device=device)
with torch.inference_mode(), d2l.Allocations() as made:
    narrow.forward_cached(X, [{} for _ in narrow.blks])
print(f'narrow model: {made.calls} operations per step, '
      f'{1e6 * steps[0] / made.calls:.0f} microseconds each')

# %% [markdown] tags=["expected"]
# ```output
# narrow model: 833±150 operations per step, ~10 microseconds each
# ```

# %% [markdown] tags=["backend-only"] why="JAX starts one compiled program"
# The bound is wide since versions of PyTorch cut the work differently. On two
# CPU cores this is a tenth of a step. On the book's GPU, which could read all
# the weights in half a millisecond, it is nearly everything, and the reason
# why its step takes the same ten milliseconds at every context up to 2048.

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
