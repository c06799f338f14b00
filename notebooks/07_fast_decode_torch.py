# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Decode at the Speed of Memory
#
# A decode step has to read every weight and the cache once. On the machine of
# the book the step that we built is twenty times slower than that, on two
# cores of a CPU four to five times. Nobody can make the bytes fewer without
# changing the model. But everything that a step does *besides* reading them
# can go.
#
# In this lesson we take the step of the first lesson and change one thing at a
# time, with the reason and the gain of each, until most of what is left is
# reading. Then we write with it, one text or several at once.

# %%
import copy
import functools

import torch
from torch import nn
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
# megabytes: of the array that we read to measure the machine; context: of the
# step that we make faster; contexts: of the fastest one; prompt: of the
# prefill; new: tokens that we write; share: of the ceiling, what we must reach
sizes = {
    'small': dict(megabytes=(512,), context=1024, contexts=(128, 2048),
                  prompt=256, new=16, reps=9, share=0.35),
    'full': dict(megabytes=(1024,), context=2048,
                 contexts=(128, 1024, 2048, 4096), prompt=2048, new=128,
                 reps=20, share=0.05),
}[run.profile]

# %% [markdown]
# ## Where We Start
#
# The model has GPT-2's size. Its step is the one of the first lesson, behind a
# context of many tokens, and the ceiling is the time in which the machine
# could read the weights and the cache once. Other programs share the memory of
# a machine, so its bandwidth changes from minute to minute: we measure it anew
# beside each step, and compare shares, not milliseconds.

# %%
# B texts, T new tokens, S slots of the cache; L blocks, D model width, H query
# heads, G key-value heads, hd width of a head, V vocabulary
L, H, hd = 12, 12, 64
torch.manual_seed(0)
model = d2l.GPT(50257, L * hd, H, L, max_len=8192).to(device).eval()
N = sum(p.numel() for p in model.parameters())
n, X = sizes['context'], torch.zeros(1, 1, dtype=torch.long, device=device)
steps = {}

def bandwidth():
    """Bytes per second of a plain loop, now."""
    return max(d2l.read_bandwidth(sizes['megabytes'], 5).values())

def ceiling(n):
    """Seconds to read once what a step after n tokens has to read."""
    return d2l.bytes_moved(N, 4, d2l.cache_bytes(L, H, hd, n)) / bandwidth()

def measure(name, step):
    """Note a step; print its time and its share of the ceiling."""
    least, steps[name] = ceiling(n), step
    t = d2l.timeit(step, sizes['reps'])
    least = min(least, ceiling(n))
    print(f'{name}: {1e3 * t:.0f} ms per step, '
          f'{100 * least / t:.0f} % of the ceiling')

@torch.inference_mode()
def full_cache(n, batch=1):
    """Keys and values of n tokens and room for one: two lists of arrays."""
    return [[torch.randn(batch, H, n + 1, hd, device=device)
             for _ in range(L)] for _ in 'kv']

ks, vs = full_cache(n)
grown = [{'k': k[:, :, :n].clone(), 'v': v[:, :, :n].clone()}
         for k, v in zip(ks, vs, strict=True)]

@torch.inference_mode()
def step_of_01():
    return model.forward_cached(X, [dict(cache) for cache in grown])

print(f'to read: {d2l.bytes_moved(N) / 1e6:.0f} MB of weights, '
      f'{d2l.cache_bytes(L, H, hd, n) / 1e6:.0f} MB of cache')
measure('lesson 01', step_of_01)

# %% [markdown] tags=["expected"]
# ```output small
# to read: 494 MB of weights, 75 MB of cache
# lesson 01: ~130 ms per step, ~22 % of the ceiling
# ```
#
# The book's step on its card takes about ten milliseconds. No run of ours has
# measured a GPU in this lesson: elsewhere the blocks for `full` have a `~…`.
#
# ```output full
# to read: 494 MB of weights, 151 MB of cache
# lesson 01: ~10 ms per step, ~5 % of the ceiling
# ```

# %% [markdown]
# ## Room Made Once

# %% [markdown] tags=["backend-only"] why="JAX has fixed buffers anyway"
# The cache of the first lesson grows by concatenation: each step asks for room
# for all keys and values, copies the old ones there, and gives the old room
# back. All of that for one new row. If we know how long the text may become,
# we make room once, write the new row into its place, and attend to the slice
# that is filled. A slice is a view: nothing is copied.

# %%
def fused(q, k, v):
    """The kernel for attention; one query sees all there is."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

@torch.inference_mode()
def plain_step(model, X, ks, vs, t, attend):
    """Logits (B, V) of tokens X (B, 1), whose rows go to slot t."""
    h = model.token_emb(X)
    for blk, k_room, v_room in zip(model.blks, ks, vs, strict=True):
        z = blk.before_attention(h)
        q, k, v = blk.attention.project(z, z, z, t)
        k_room[:, :, t:t + 1], v_room[:, :, t:t + 1] = k, v
        Y = attend(q, k_room[:, :, :t + 1], v_room[:, :, :t + 1])
        Y = blk.attention.W_o(Y.transpose(1, 2).flatten(2))
        h = blk.after_attention(h, Y)
    return model.norm(h[:, -1]) @ model.token_emb.weight.T

measure('buffers', lambda: plain_step(model, X, ks, vs, n, fused))

# %% [markdown] tags=["expected"]
# ```output small
# buffers: ~80 ms per step, ~35 % of the ceiling
# ```
# ```output full
# buffers: ~…
# ```

# %% [markdown]
# ## Logits of the Last Token Only
#
# A prompt of many tokens asks for one row of logits: that of its last token.
# The table of embeddings, with which logits are made, is the largest matrix of
# the model, so the rows that nobody reads are a good part of the prefill. A
# decode step has one row anyway; it gains nothing here.

# %%
@torch.inference_mode()
def head_seconds(rows):
    """Seconds to make logits of so many tokens."""
    h = torch.randn(1, rows, L * hd, device=device)
    return d2l.timeit(lambda: h @ model.token_emb.weight.T, reps=3)

@torch.inference_mode()
def prefill_seconds(rows):
    """Seconds of a pass over a prompt, with logits of all its tokens."""
    X = torch.zeros(1, rows, dtype=torch.long, device=device)
    return d2l.timeit(lambda: model(X), reps=3)

T = sizes['prompt']
head = {rows: head_seconds(rows) for rows in (1, T)}
print(f'a pass over {T} tokens: {1e3 * prefill_seconds(T):.0f} ms')
print(f'of it logits: {1e3 * head[T]:.0f} ms for all, '
      f'{1e3 * head[1]:.0f} ms for the last')
assert head[1] < head[T], f'one row {head[1]:.4f} s, all {head[T]:.4f} s'

# %% [markdown] tags=["expected"]
# ```output small
# a pass over 256 tokens: ~900 ms
# of it logits: ~300 ms for all, ~11 ms for the last
# ```
# ```output full
# a pass over 2048 tokens: ~…
# of it logits: ~…
# ```

# %% [markdown]
# ## The Weights

# %% [markdown] tags=["backend-only"] why="about the layout that MKL likes"
# Most of the step is products of one row with a matrix. `nn.Linear` keeps its
# weight as (out, in), a row for each output. The library behind it reads that
# matrix at well under the bandwidth if there is only one row to multiply, and
# faster if the same numbers lie as (in, out), transposed *in memory*. A
# tensor's shape says nothing about that order: `W.T.contiguous().T` has the
# shape and the values of `W`, with the numbers of each column next to each
# other. So the modules stay as they are. (The lesson on the roofline measured
# both ways; which is better is a matter of the library and the machine.)

# %%
def turned(model):  #@save
    """A copy of the model whose matrices lie column by column."""
    model = copy.deepcopy(model)
    for p in model.parameters():
        if p.dim() == 2:
            p.data = p.data.T.contiguous().T
    return model.eval()

columns = turned(model)
measure('weights', lambda: plain_step(columns, X, ks, vs, n, fused))

# %% [markdown] tags=["expected"]
# ```output small
# weights: ~70 ms per step, ~42 % of the ceiling
# ```
# ```output full
# weights: ~…
# ```

# %% [markdown]
# ## One Query Is Not Many
#
# Kernels for attention are made for many queries: their art is to keep a table
# of scores, one for each query and key, out of memory. One query has one row
# of scores for each head, and nothing to keep out. What is left is two
# products of a row with a matrix: scores $q K^\top$, and the mean of values,
# $w V$. Heads that share keys and values are rows of one product.

# %% [markdown] tags=["backend-only"] why="about the fused kernel of a CPU"
# Written as two products, attention is no faster here than the kernel, which
# has a case for this. It gains in another way: products are something that the
# compiler of the next section can look into.

# %%
def attend_row(q, ks, vs, mask=None):  #@save
    """What one query of each head reads (B, H, 1, hd).

    q: (B, H, 1, hd), ks and vs: (B, G, S, hd), mask: (B, 1, 1, S), True where
    there is something to see.
    """
    B, H, _, hd = q.shape
    q = q.reshape(B, ks.shape[1], -1, hd)                    # (B, G, H/G, hd)
    return (d2l.attention_weights(q, ks, mask) @ vs).reshape(B, H, 1, hd)

measure('attention', lambda: plain_step(columns, X, ks, vs, n, attend_row))

# %% [markdown] tags=["expected"]
# ```output small
# attention: ~70 ms per step, ~41 % of the ceiling
# ```
# ```output full
# attention: ~…
# ```

# %% [markdown]
# ## One Call
#
# What is left besides reading is the cost of asking for work.

# %% [markdown] tags=["backend-only"] why="PyTorch runs operation by operation"
# A step of twelve blocks is hundreds of operations, each called from Python,
# each started, most of them on a single row. `torch.compile` turns the
# step into one program. Three things make it a good one:
#
# * **One block.** All blocks do the same, so `nested_compile_region` has the
#   compiler work on a block once, not twelve times.
# * **Sums.** A product of one row with a matrix is a sum along each row of
#   $W$, `(W * x).sum(-1)`. Uncompiled that would be a waste, it writes $W * x$
#   out; compiled it becomes a loop that reads $W$ once, where it lies, and is
#   faster than the library. So we exchange the class of the linear maps in a
#   twin of the model, which shares all its parameters, and no other layout is
#   needed.
# * **One program for every step.** What changes from step to step, the slot
#   `t`, is a tensor, and the room is attended to as a whole, under a mask.
#   (Its length is marked as one that may vary.) On CUDA the mode
#   `reduce-overhead` records the step as a *graph*, which Python starts with
#   one call; no run of ours has tried that.
#
# The program is built when it is first called, which takes some ten seconds,
# and needs a C++ compiler. Without one, `generate_fast` falls back to
# `turned`.

# %%
def row_times(x, W, bias=None):  #@save
    """F.linear for a single row x, as a sum that a compiler makes a loop."""
    y = (W * x.flatten()).sum(-1)
    y = y if bias is None else y + bias
    return y.reshape(*x.shape[:-1], -1)

def linear(x, W, bias=None):  #@save
    """F.linear; a single row, where it is compiled, as a sum."""
    one = x.numel() == x.shape[-1] and torch.compiler.is_compiling()
    return (row_times if one else F.linear)(x, W, bias)

class RowLinear(nn.Linear):  #@save
    """A linear map that writes the product with a single row as a sum."""

    def forward(self, x):
        return linear(x, self.weight, self.bias)

def twin(model):  #@save
    """The same parameters in new modules, linear maps as `RowLinear`."""
    model = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = RowLinear
    return model.eval()

@torch.compiler.nested_compile_region  #@save
def fast_block(blk, h, k_room, v_room, slots, offset, mask):
    """A block's output (B, T, D), of inputs h whose rows go to slots (T,)."""
    z = blk.before_attention(h)
    q, k, v = blk.attention.project(z, z, z, offset)
    k_room.index_copy_(2, slots, k)
    v_room.index_copy_(2, slots, v)
    Y = (attend_row(q, k_room, v_room, mask) if len(slots) == 1 else
         F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True))
    Y = blk.attention.W_o(Y.transpose(1, 2).flatten(2))
    return blk.after_attention(h, Y)

def fast_pass(model, X, ks, vs, t, starts):  #@save
    """Logits (B, V) of the last of new tokens X (B, T).

    ks, vs: for each block a tensor (B, G, S, hd), in which the new rows go to
    slots t, t + 1, ..; starts: (B,), the first slot of each text. T > 1 is
    for a prompt, at t = 0.
    """
    T = X.shape[1]
    slots = t + torch.arange(T, device=X.device)             # (T,)
    seen = torch.arange(T if T > 1 else ks[0].shape[2], device=X.device)
    mask = (seen >= starts[:, None, None]) & (seen <= slots[:, None])
    mask = mask[:, None]                                     # (B, 1, T, S)
    h = model.token_emb(X)
    if model.pos == 'learned':
        h = h + model.pos_emb((slots - starts[:, None]).clamp(min=0))
    offset = (t - starts)[:, None, None]
    for blk, k_room, v_room in zip(model.blks, ks, vs):  # noqa: B905
        h = fast_block(blk, h, k_room, v_room, slots, offset, mask)
    return linear(model.norm(h[:, -1]), model.token_emb.weight)

fast_step = torch.compile(  #@save
    fast_pass, fullgraph=True, dynamic=False, mode='reduce-overhead')

# %%
def may_vary(ks, vs):  #@save
    """Tell the compiler that the room differs from text to text."""
    for room in (*ks, *vs):
        torch._dynamo.mark_dynamic(room, 2)
        if room.is_cuda:  # a graph writes to where it was recorded
            torch._dynamo.mark_static_address(room)
    return ks, vs

def at(n):
    return torch.tensor(n, device=device)

may_vary(ks, vs)
fast, one = twin(model), torch.zeros(1, dtype=torch.long, device=device)
with torch.inference_mode():
    error = (fast_step(fast, X, ks, vs, at(n), one)
             - step_of_01()[:, -1]).abs().max()
print(f'lesson 01 and now: logits differ by {error:.1e}')

@torch.inference_mode()
def compiled_step():
    return fast_step(fast, X, ks, vs, at(n), one)

measure('one call', compiled_step)

# %% [markdown] tags=["expected"]
# ```output small
# lesson 01 and now: logits differ by <1e-4
# one call: ~40 ms per step, ~65 % of the ceiling
# ```
# ```output full
# lesson 01 and now: logits differ by <1e-3
# one call: ~…
# ```

# %% [markdown]
# ## The Waterfall
#
# All changes in one picture: each bar is what a step takes after one more
# change, and the line is the ceiling. The times above are of different
# minutes, in which the memory may have been faster or slower. So we time all
# the steps once more, *in turns*: a round is one call of each, and of several
# rounds the fastest call counts. Now a gain can be told from the weather.

# %%
def in_turns(steps, rounds=4):
    """Least seconds of each; in turns, so that all meet the same minutes."""
    seconds = {}
    for _ in range(rounds):
        for name, step in steps.items():
            t = d2l.timeit(step, reps=1)
            seconds[name] = min(t, seconds.get(name, t))
    return seconds

least = ceiling(n)
best = in_turns(steps)
least = min(least, ceiling(n))
axes = d2l.show_bars(list(best), [1e3 * t for t in best.values()],
                     'time per step (ms)', line=1e3 * least,
                     line_label='bytes / bandwidth')
before = None
for name, t in best.items():
    gain = f', {before / t:.2f} times as fast as before' if before else ''
    print(f'{name}: {100 * least / t:.0f} % of the ceiling{gain}')
    before = t
print(f'in all {best["lesson 01"] / best["one call"]:.1f} times as fast')
assert best['one call'] < 0.8 * best['lesson 01'], best
assert sizes['share'] < least / best['one call'] < 1.3, (least, best)
steps.clear()  # and their caches

# %% [markdown] tags=["expected", "backend-only"] why="its bars"
# ```output small
# lesson 01: ~24 % of the ceiling
# buffers: ~37 % of the ceiling, ~1.55 times as fast as before
# weights: ~45 % of the ceiling, ~1.20 times as fast as before
# attention: ~43 % of the ceiling, ~0.95 times as fast as before
# one call: ~74 % of the ceiling, ~1.75 times as fast as before
# in all ~3.1 times as fast
# [figure]
# ```
# ```output full
# ~⋮
# [figure]
# ```

# %% [markdown] tags=["backend-only"] why="the bars are of this backend"
# The largest gains are the first and the last: not to copy a cache, and to let
# a compiler write the loops. Starting operations is only a part of the last
# one: the narrow model of the lesson on the roofline takes eight milliseconds
# in all. The rest is in the products, which now read the weights faster.

# %% [markdown]
# ## Does It Grow as Bytes Do?
#
# If a step is bound by reading, a longer context costs the time of the bytes
# it adds, and nothing else. We compare how the step grows with how its bytes
# grow.

# %%
def step_after(n):
    """The compiled step after n tokens."""
    ks, vs = may_vary(*full_cache(n))
    return torch.inference_mode()(
        lambda: fast_step(fast, X, ks, vs, at(n), one))

by_context = in_turns({n: step_after(n) for n in sizes['contexts']})
moved = {n: d2l.bytes_moved(N, 4, d2l.cache_bytes(L, H, hd, n))
         for n in by_context}
short, *_, long = by_context
for m, t in by_context.items():
    print(f'n={m:5}: {moved[m] / moved[short]:.2f} times the bytes, '
          f'{t / by_context[short]:.2f} times the time')
growth = by_context[long] / by_context[short] / (moved[long] / moved[short])
assert growth < 1.5, f'{growth:.2f} times as much as the bytes: {by_context}'

# %% [markdown] tags=["expected"]
# ```output small
# n=  128: 1.00 times the bytes, 1.00 times the time
# n= 2048: 1.28 times the bytes, ~1.5 times the time
# ```
# ```output full
# n=  128: 1.00 times the bytes, 1.00 times the time
# n= 1024: 1.13 times the bytes, ~…
# n= 2048: 1.28 times the bytes, ~…
# n= 4096: 1.58 times the bytes, ~…
# ```

# %% [markdown]
# The check above allows half as much again as the bytes ask for. More can be
# said. Let a step take $t(n) = a + b(n) / r$: a time $a$ for all that does not
# depend on the context, and the bytes $b(n)$ of the cache at a rate $r$. Two
# contexts give two equations for $a$ and $r$, which say where the step spends
# its time.

# %%
more = by_context[long] - by_context[short]
assert more > 0, by_context
rate = (moved[long] - moved[short]) / more
cache = d2l.cache_bytes(L, H, hd, n) / rate
rest = by_context[short] - d2l.cache_bytes(L, H, hd, short) / rate
print(f'cache of {n} tokens: {1e3 * cache:.0f} ms, {rate / 1e9:.0f} GB/s')
print(f'all else: {1e3 * rest:.0f} ms; if that is reading weights, '
      f'{d2l.bytes_moved(N) / rest / 1e9:.0f} GB/s')
print(f'plain read: {bandwidth() / 1e9:.0f} GB/s')

# %% [markdown] tags=["expected"]
# ```output small
# cache of 1024 tokens: ~8 ms, ~9 GB/s
# all else: ~29 ms; if that is reading weights, ~17 GB/s
# plain read: ~20 GB/s
# ```
# ```output full
# cache of 2048 tokens: ~…
# all else: ~…
# plain read: ~…
# ```

# %% [markdown] tags=["backend-only"] why="how its attention reads"
# All three vary from run to run. In ours the weights were read at half to nine
# tenths of a plain read, the cache at a quarter to three fifths of it. A byte
# of the cache takes about twice as long, so the step grows faster than its
# bytes. They are read by two small products for each head, with a softmax in
# between. It would take a kernel made for one query to do better, which reads
# keys and values in one go, and shares the heads out to the cores.

# %% [markdown]
# ## Writing with It
#
# Now the pieces become a function, for any model of ours and any number of
# texts. Texts of different length end at the same slot: each prompt is padded
# on its *left*, and `starts` says where it begins. Its positions count from
# there, and the mask hides what lies before. So the newest token of each text
# is in the same slot, and one step serves them all.
#
# A text alone is a batch of one, and its tokens are drawn as in the first
# lesson, from the same random numbers.

# %%
@functools.cache  #@save
def can_compile(device):
    """Whether `torch.compile` finds what it needs to build a program."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device=device))
    except Exception:  # whatever is missing, the plain pass does without
        return False
    return True

def fast_parts(model):  #@save
    """The step for one new token, and the modules that it takes."""
    if not can_compile(model.norm.weight.device):
        return fast_pass, turned(model)
    # each model and batch size is a program of its own; past the limit, which
    # is 8, a call would fail
    torch._dynamo.config.recompile_limit = 256
    return fast_step, twin(model)

def fast_cache(model, batch_size, max_len):  #@save
    """Empty keys and values, a tensor (B, G, S, hd) for each block."""
    attention, W = model.blks[0].attention, model.token_emb.weight
    G = getattr(attention, 'num_kv_heads', attention.num_heads)
    shape = batch_size, G, max_len, W.shape[1] // attention.num_heads
    return [[W.new_zeros(shape) for _ in model.blks] for _ in 'kv']

@d2l.add_to_class(d2l.GPT)  #@save
@torch.inference_mode()
def generate_batch(self, prefixes, num_tokens, temperature=1.0, top_k=None):
    """`generate_fast` for several prefixes at once: a list for each."""
    vocab_size, device = len(self.token_emb.weight), self.norm.weight.device
    prefixes = [d2l.check_prompt(prefix, num_tokens, self.max_len, vocab_size)
                for prefix in prefixes]
    d2l.check_sampling(temperature, top_k)
    if not prefixes or not num_tokens:
        return prefixes
    T = max(map(len, prefixes))
    X = torch.tensor([[0] * (T - len(prefix)) + prefix
                      for prefix in prefixes], device=device)
    starts = torch.tensor([T - len(prefix) for prefix in prefixes],
                          device=device)
    ks, vs = may_vary(*fast_cache(self, len(X), T + num_tokens))
    step, model = fast_parts(self)
    ids, t = [X], torch.zeros((), dtype=torch.long, device=device)
    for i in range(num_tokens):
        logits = (step if i else fast_pass)(model, X, ks, vs, t, starts)
        t = t + X.shape[1]
        X = d2l.sample_token(logits, temperature, top_k)     # (B, 1)
        ids.append(X)
    ids = torch.cat(ids, dim=1).tolist()
    return [row[start:] for row, start in zip(ids, starts.tolist(),
                                              strict=True)]

@d2l.add_to_class(d2l.GPT)  #@save
def generate_fast(self, prefix, num_tokens, temperature=1.0, top_k=None):
    """`generate_cached`, compiled: prefix + continuation, a list of ids."""
    return self.generate_batch([prefix], num_tokens, temperature, top_k)[0]

# %% [markdown]
# A pretrained model and a greedy text: the fast loop has to write the same
# tokens as the cached loop of the first lesson. Both are called once before
# they are timed, since the first call compiles.

# %%
lm, encoding, name = d2l.load_checkpoint()
prompt = encoding.encode_ordinary('The time machine stood in the corner. It')
loops = {'cached': lm.generate_cached, 'fast': lm.generate_fast}
texts, rates = {}, {}
for loop, generate in loops.items():
    texts[loop] = generate(prompt, sizes['new'], temperature=0)
    rates[loop] = sizes['new'] / d2l.timeit(
        lambda f=generate: f(prompt, sizes['new'], temperature=0), reps=3)
same = sum(a == b for a, b in zip(
    *(text[len(prompt):] for text in texts.values()), strict=True))
print(f'{name}: {same} of {sizes["new"]} new tokens equal')
d2l.print_wrapped(encoding.decode(texts['fast']))
print(f'cached {rates["cached"]:.1f} tokens/s, fast {rates["fast"]:.1f}')

# %% [markdown] tags=["expected"]
# ```output small
# {checkpoint}: 16 of 16 new tokens equal
# The time machine stood in the corner. It~…
# ~…
# cached ~11 tokens/s, fast ~21
# ```
# ```output full
# {checkpoint}: 128 of 128 new tokens equal
# The time machine stood in the corner. It~…
# ~⋮
# cached ~…
# ```

# %% [markdown]
# The fast loop gains less here than the waterfall promises. With so short
# a context there is no cache to speak of, and not to copy it was much of the
# gain. And the time to read the prompt is in both.
#
# ## Several Texts at Once
#
# Weights that are read for one text serve the others as well. Greedy, each row
# of a batch has to be what its prompt gives alone, whatever stands beside it.
# (All texts of a batch are drawn from one stream of random numbers, so a drawn
# text depends on what stands beside it.)

# %%
prompts = [encoding.encode_ordinary(text) for text in (
    'In the year 802,701', 'It was a dark night, and the wind',
    'The', 'He took the lamp in his hand and')]
together = lm.generate_batch(prompts, sizes['new'], temperature=0)
alone = [lm.generate_fast(prompt, sizes['new'], temperature=0)
         for prompt in prompts]
print(f'prompts of {sorted(map(len, prompts))} tokens; alone and together '
      f'equal: {sum(a == b for a, b in zip(alone, together, strict=True))} '
      f'of {len(prompts)}')
seconds = d2l.timeit(lambda: lm.generate_batch(
    prompts, sizes['new'], temperature=0), reps=1)
print(f'together {len(prompts) * sizes["new"] / seconds:.1f} tokens/s')

# %% [markdown] tags=["expected"]
# ```output smollm2
# prompts of [1, 8, 9, 11] tokens; alone and together equal: 4 of 4
# together ~27 tokens/s
# ```
# ```output gpt2
# prompts of [1, 6, 8, 9] tokens; alone and together equal: 4 of 4
# together ~27 tokens/s
# ```

# %% [markdown]
# On two cores the gain is small. Four rows do two operations per byte, still
# below the ridge, but the libraries' products with a handful of rows reach
# neither limit; and reading the prompts is in the time, too. On a card whose
# ridge lies at eighty operations per byte, dozens of texts could share one
# reading of the weights.
#
# ## What This Shows, and What It Does Not
#
# * A step that is bound by reading gets faster by not doing other things:
#   copying a cache, starting small operations, turning keys over, handing
#   arrays back and forth. None of it changes what is computed, but for
#   rounding.
# * Each gain was measured on the step that the one before had left. (The last
#   one in PyTorch has its own way to multiply a row, in place of the layout.)
#   In another order the bars would be others; a change that gains nothing
#   alone may be what makes the next one possible.
# * What is left to the ceiling is in the loops that compilers and libraries
#   write. Our bandwidth is that of a plain loop, so the true ceiling may be
#   higher.
# * To go beyond this ceiling, the bytes have to become fewer: shared heads,
#   weights of 16, 8 or 4 bits, or several tokens for each read, drafted by a
#   smaller model. All of these change what is computed, or how much.
# * `make bench` compares all the ways to decode with each other, and with a
#   library that you would use otherwise, on your machine: hours, and then a
#   table and a plot in `build/bench/`. Those of one machine are kept in
#   `BENCHMARK.md`.
