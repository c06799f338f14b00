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
import functools
import weakref

import jax
import jax.numpy as jnp
from flax import nnx

from d2l_ext import jax as d2l

run = d2l.current_run()
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
                  prompt=256, new=16, reps=5, share=0.35),
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
model = d2l.GPT(50257, L * hd, H, L, max_len=8192)
model.eval()
N = sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
n, X = sizes['context'], jnp.zeros((1, 1), jnp.int32)
steps = {}

def bandwidth():
    """Bytes per second of a plain loop, now."""
    return max(d2l.read_bandwidth(sizes['megabytes'], 5).values())

def ceiling(n):
    """Seconds to read once what a step after n tokens has to read."""
    return d2l.bytes_moved(N, 4, d2l.cache_bytes(L, H, hd, n)) / bandwidth()

def measure(name, step, count=1):
    """Note a call of `count` steps; print a step's time and share."""
    least, steps[name] = ceiling(n), (step, count)
    t = d2l.timeit(step, sizes['reps']) / count
    least = min(least, ceiling(n))
    print(f'{name}: {1e3 * t:.0f} ms per step, '
          f'{100 * least / t:.0f} % of the ceiling')

def stacked_cache(n):
    """Keys and values of n tokens and room for one, as in lesson 01."""
    return jax.random.normal(jax.random.key(0), (2, L, 1, n + 1, H, hd))

print(f'to read: {d2l.bytes_moved(N) / 1e6:.0f} MB of weights, '
      f'{d2l.cache_bytes(L, H, hd, n) / 1e6:.0f} MB of cache')
ks, vs = stacked_cache(n)
measure('lesson 01', lambda: d2l.cached_forward(model, ks, vs, X, n)[0])

# %% [markdown] tags=["expected"]
# ```output small
# to read: 494 MB of weights, 75 MB of cache
# lesson 01: ~120 ms per step, ~23 % of the ceiling
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

# %% [markdown] tags=["backend-only"] why="torch writes into what it is given"
# Our buffers have their final size from the start, but the step of the first
# lesson must not change them: its caller may want to go on from the old ones.
# So XLA copies all keys and values to write one new row. *Donating* the
# buffers tells XLA that nobody will look at them again. Then it writes the row
# into its place.

# %%
class Donating:
    """Calls step(ks, vs), to which both are donated, with what it gave."""

    def __init__(self, step, ks, vs):
        self.step, self.cache = step, (ks, vs)

    def __call__(self):
        found, *self.cache = self.step(*self.cache)
        return found

measure('buffers', Donating(
    lambda ks, vs: d2l.donated_chunk(model, ks, vs, X, n),
    *stacked_cache(n)))

# %% [markdown] tags=["expected"]
# ```output small
# buffers: ~75 ms per step, ~33 % of the ceiling
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
@jax.jit
def all_logits(model, h):
    return model.token_emb.attend(h)

@jax.jit
def full_pass(model, X):
    return model(X)

def head_seconds(rows):
    """Seconds to make logits of so many tokens."""
    h = jax.random.normal(jax.random.key(0), (1, rows, L * hd))
    return d2l.timeit(lambda: all_logits(model, h), reps=3)

def prefill_seconds(rows):
    """Seconds of a pass over a prompt, with logits of all its tokens."""
    X = jnp.zeros((1, rows), jnp.int32)
    return d2l.timeit(lambda: full_pass(model, X), reps=3)

T = sizes['prompt']
head = {rows: head_seconds(rows) for rows in (1, T)}
print(f'a pass over {T} tokens: {1e3 * prefill_seconds(T):.0f} ms')
print(f'of it logits: {1e3 * head[T]:.0f} ms for all, '
      f'{1e3 * head[1]:.0f} ms for the last')
assert head[1] < head[T], f'one row {head[1]:.4f} s, all {head[T]:.4f} s'

# %% [markdown] tags=["expected"]
# ```output small
# a pass over 256 tokens: ~900 ms
# of it logits: ~205 ms for all, ~13 ms for the last
# ```
# ```output full
# a pass over 2048 tokens: ~…
# of it logits: ~…
# ```

# %% [markdown]
# ## The Weights

# %% [markdown] tags=["backend-only"] why="about the call of a jitted function"
# A model is a tree of modules, and a compiled function takes arrays. So at
# each call JAX walks through the tree to collect some hundred arrays, and
# builds modules around them again inside. We can split the model once, into
# its structure and its arrays, and pass the arrays alone.

# %% tags=["backend-only"] why="PyTorch calls modules as they are"
@functools.partial(jax.jit, static_argnames='graphdef',
                   donate_argnames=('ks', 'vs'))
def split_chunk(graphdef, state, ks, vs, X, t):
    return d2l.forward_chunk(nnx.merge(graphdef, state), ks, vs, X, t)

def split_step(model):
    """A step of lesson 01 that walks through the model only once."""
    parts = nnx.split(model)
    return Donating(lambda ks, vs: split_chunk(*parts, ks, vs, X, n),
                  *stacked_cache(n))

measure('split', split_step(model))

# %% [markdown] tags=["expected", "backend-only"] why="no such step in PyTorch"
# ```output small
# split: ~73 ms per step, ~33 % of the ceiling
# ```
# ```output full
# split: ~…
# ```

# %% [markdown] tags=["backend-only"] why="about the layout that XLA likes"
# That gains nothing to speak of here, as the lesson on the roofline found: the
# walk is short beside the step. On a faster device it would weigh more.
#
# More is in the arrays themselves. Most of the step is products of one row
# with a matrix. `nnx.Linear` keeps its weight as (in, out), a row for each
# input, and the product is a sum of such rows. If the same numbers lie as
# (out, in), each number of the result is a sum along one row, and the matrix
# is read from its start to its end. A layer takes the function that multiplies
# as an argument, `dot_general`, so the modules stay as they are. (The lesson
# on the roofline timed single products, where either layout may win.) Over a
# whole step this one gains a tenth at most. That is less than the bandwidth
# moves from one minute to the next, so the next line may also come out above
# the last; the waterfall below times both in the same minutes.

# %%
def times_turned(x, W, dims, **options):  #@save
    """`jax.lax.dot_general` of x and a matrix that lies as (out, in)."""
    (x_dims, _), batch_dims = dims
    return jax.lax.dot_general(x, W, ((x_dims, (1,)), batch_dims), **options)

def turned(model):  #@save
    """A copy of the model whose linear maps keep weights as (out, in)."""
    model = nnx.merge(*nnx.split(model))  # new modules around the same arrays
    for _, module in nnx.iter_modules(model):
        if type(module) is nnx.Linear:
            module.kernel = nnx.Param(module.kernel[...].T)
            module.dot_general = times_turned
    return model

rows = turned(model)
measure('weights', split_step(rows))

# %% [markdown] tags=["expected"]
# ```output small
# weights: ~68 ms per step, ~36 % of the ceiling
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

# %% [markdown] tags=["backend-only"] why="about batched products in XLA"
# The kernel wants keys in another order than the cache has, and XLA turns all
# of them at each step. A product over many matrices wants them one behind the
# other. So we keep the cache as (B * G, S, hd), one matrix for each head of
# each text, and not as (B, G, S, hd). Both have the same numbers in the same
# order, and as a rule it costs nothing to reshape one into the other. Here it
# does. If a reshape stands between the write of a new row and the product, XLA
# makes one program of write and reshape, which gives a new array: the whole
# cache is copied after all. With nothing in between, the row goes to its
# place.

# %%
def attend_row(q, ks, vs, mask):  #@save
    """What one query of each head reads (B, 1, H, hd).

    q: (B, 1, H, hd), ks and vs: (B * G, S, hd), a matrix for each head of
    each text, mask: (B, 1, 1, S), True where there is something to see.
    """
    B, _, H, hd = q.shape
    q = q.reshape(len(ks), -1, hd) / hd**0.5  # heads of a group are rows
    scores = jnp.einsum('grd,gsd->grs', q, ks).reshape(B, H, 1, -1)
    w = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    w = w.reshape(*q.shape[:2], -1)
    return jnp.einsum('grs,gsd->grd', w, vs).reshape(B, 1, H, hd)

def fast_pass(model, X, ks, vs, t, starts):  #@save
    """Logits (B, V) of the last of new tokens X (B, T), and the cache.

    ks, vs: for each block an array (B * G, S, hd), in which the new rows go to
    slots t, t + 1, ..; starts: (B,), the first slot of each text. T > 1 is
    for a prompt, at t = 0.
    """
    T = X.shape[1]
    slots = t + jnp.arange(T)                                # (T,)
    seen = jnp.arange(T if T > 1 else ks[0].shape[1])
    mask = (seen >= starts[:, None, None]) & (seen <= slots[:, None])
    mask = mask[:, None]                                     # (B, 1, T, S)
    h = model.token_emb(X)
    if model.pos == 'learned':
        h = h + model.pos_emb(jnp.maximum(slots - starts[:, None], 0))
    new_ks, new_vs = [], []
    for blk, k_room, v_room in zip(model.blks, ks, vs, strict=True):
        z = blk.before_attention(h)
        q, k, v = blk.attention.project(z, z, z, (t - starts)[:, None])
        k_room, v_room = (jax.lax.dynamic_update_slice(
            room, x.swapaxes(1, 2).reshape(-1, T, room.shape[-1]), (0, t, 0))
            for room, x in ((k_room, k), (v_room, v)))
        Y = (attend_row(q, k_room, v_room, mask) if T == 1 else
             jax.nn.dot_product_attention(q, k, v, mask=mask))
        h = blk.after_attention(h, blk.attention.W_o(Y.reshape(h.shape)))
        new_ks.append(k_room)
        new_vs.append(v_room)
    logits = model.token_emb.attend(model.norm(h[:, -1]))
    return logits, tuple(new_ks), tuple(new_vs)

@functools.partial(jax.jit, static_argnames='graphdef',
                   donate_argnames=('ks', 'vs'))
def split_pass(graphdef, state, X, ks, vs, t, starts):
    return fast_pass(nnx.merge(graphdef, state), X, ks, vs, t, starts)

def full_cache(n, room=64):
    """Keys and values of n tokens and some room: an array for each block."""
    keys = jax.random.split(jax.random.key(0), (2, L))
    return tuple(tuple(jax.random.normal(key, (H, n + room, hd))
                       for key in half) for half in keys)

parts, one = nnx.split(rows), jnp.zeros(1, jnp.int32)    # from slot 0 on
measure('attention', Donating(lambda ks, vs: split_pass(
    *parts, X, ks, vs, n, one), *full_cache(n)))

# %% [markdown] tags=["expected"]
# ```output small
# attention: ~48 ms per step, ~50 % of the ceiling
# ```
# ```output full
# attention: ~…
# ```

# %% [markdown]
# ## One Call
#
# What is left besides reading is the cost of asking for work.

# %% [markdown] tags=["backend-only"] why="JAX can keep the loop on the device"
# A compiled step is already one call. But each token is drawn by another
# program, and Python has to hand the result of one to the next, with the whole
# tree of arrays. We put the loop itself into the program: step, draw, step,
# draw. Python is called once for the text.
#
# A program is compiled for its shapes. If each length of a prompt and of a
# text had its own, we would wait for the compiler more often than for the
# model. So lengths are rounded up to 16, 32 or a multiple of 64: that of a
# prompt, which is padded on its *left*, where a mask hides what was added, and
# that of the room. The number of tokens to write is a traced number. The price
# is to read some slots that are empty.

# %%
def round_up(count):  #@save
    """16, 32 or a multiple of 64: one compilation serves all up to it."""
    return next((n for n in (16, 32) if count <= n), -(-count // 64) * 64)

def fast_cache(model, batch_size, max_len):  #@save
    """Empty keys and values, an array (B * G, S, hd) for each block."""
    like, _ = jax.eval_shape(lambda: d2l.init_cache(
        model, batch_size, max_len))
    _, B, S, G, hd = like.shape
    return tuple(tuple(jnp.zeros((B * G, S, hd), like.dtype)
                       for _ in model.blks) for _ in 'kv')

@functools.partial(  #@save
    jax.jit, static_argnames=('greedy', 'top_k', 'room'))
def fast_prefill(model, X, starts, key, temperature, greedy, top_k, room):
    """The token (B, 1) after prompts X (B, T), and the cache."""
    ks, vs = fast_cache(model, len(X), room)
    logits, ks, vs = fast_pass(model, X, ks, vs, 0, starts)
    X = d2l.sample_token(logits, 0 if greedy else temperature, top_k, key)
    return X, ks, vs

@functools.partial(  #@save
    jax.jit, static_argnames=('greedy', 'top_k'),
    donate_argnames=('ks', 'vs'))
def fast_loop(model, X, ks, vs, t, starts, keys, count, temperature, greedy,
              top_k):
    """The next `count` tokens, X (B, 1) the first of them, and the cache.

    keys: (S,), one for each token there is room for; returns ids (B, S), of
    which the first `count` count.
    """
    def step(i, carry):
        X, ks, vs, ids = carry
        ids = jax.lax.dynamic_update_slice(ids, X, (0, i))
        logits, ks, vs = fast_pass(model, X, ks, vs, t + i, starts)
        X = d2l.sample_token(logits, 0 if greedy else temperature, top_k,
                             keys[i + 1])
        return X, ks, vs, ids

    ids = jnp.zeros((len(X), len(keys)), jnp.int32)
    X, ks, vs, ids = jax.lax.fori_loop(0, count - 1, step, (X, ks, vs, ids))
    return jax.lax.dynamic_update_slice(ids, X, (0, count - 1)), ks, vs

# %%
at_once = 8  # steps in one call

def looped(n):
    """Steps after n tokens, as one call: it gives the first token, too."""
    room = round_up(n + at_once + 1)
    ks, vs = full_cache(n, room - n)
    keys = jax.random.split(jax.random.key(0), room)
    return Donating(lambda ks, vs: fast_loop(
        rows, X, ks, vs, n, one, keys, at_once + 1, temperature=1.0,
        greedy=True, top_k=None), ks, vs)

now = split_pass(*parts, X, *full_cache(n), n, one)[0]
before = d2l.jitted_chunk(model, *(jnp.stack(x).swapaxes(1, 2)[:, None]
                                 for x in full_cache(n)), X, n)[0]
error = jnp.abs(now - before).max()
print(f'lesson 01 and now: logits differ by {error:.1e}')
measure('one call', looped(n), count=at_once)

# %% [markdown] tags=["expected"]
# ```output small
# lesson 01 and now: logits differ by <1e-4
# one call: ~40 ms per step, ~60 % of the ceiling
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
best = in_turns({name: step for name, (step, _) in steps.items()})
best = {name: t / steps[name][1] for name, t in best.items()}
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
# lesson 01: ~22 % of the ceiling
# buffers: ~34 % of the ceiling, ~1.50 times as fast as before
# split: ~34 % of the ceiling, ~1.00 times as fast as before
# weights: ~36 % of the ceiling, ~1.05 times as fast as before
# attention: ~57 % of the ceiling, ~1.65 times as fast as before
# one call: ~64 % of the ceiling, ~1.15 times as fast as before
# in all ~2.9 times as fast
# [figure]
# ```
# ```output full
# ~⋮
# [figure]
# ```

# %% [markdown] tags=["backend-only"] why="the bars are of this backend"
# Two gains are large: not to copy a cache, and not to turn its keys at each
# step. The split gains nothing, the layout of the weights a tenth at most. The
# loop in one call gains little here, five to seventeen per cent in our runs:
# what Python does between two steps is small beside a step of forty
# milliseconds. It would weigh more where a step takes one.

# %% [markdown]
# ## Does It Grow as Bytes Do?
#
# If a step is bound by reading, a longer context costs the time of the bytes
# it adds, and nothing else. We compare how the step grows with how its bytes
# grow.

# %%
by_context = in_turns({n: looped(n) for n in sizes['contexts']})
by_context = {n: t / at_once for n, t in by_context.items()}
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
# n= 2048: 1.28 times the bytes, ~1.3 times the time
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
# cache of 1024 tokens: ~5 ms, ~15 GB/s
# all else: ~32 ms; if that is reading weights, ~15 GB/s
# plain read: ~20 GB/s
# ```
# ```output full
# cache of 2048 tokens: ~…
# all else: ~…
# plain read: ~…
# ```

# %% [markdown] tags=["backend-only"] why="how its attention reads"
# All three vary from run to run. In ours the weights were read at seven to
# eight tenths of a plain read, and the cache at six to nine, the one about as
# fast as the other. So the step grows about as its bytes do. What is missing
# to the ceiling is in the products, whose loops are those of XLA.

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

# %% [markdown] tags=["backend-only"] why="only here weights are copied"
# To turn the weights takes as long as a few steps, and the copy as much memory
# as the weights. So it is made when a model writes its first text, and kept as
# long as the model lives. Arrays of JAX never change: while the model holds
# the same ones, the copy holds.

# %%
fast_copies = weakref.WeakKeyDictionary()  #@save

def fast_modules(model):  #@save
    """The model turned, if that is worth it: a copy, kept with the model."""
    if jax.default_backend() != 'cpu':
        return model
    arrays = jax.tree.leaves(model)
    before, copy = fast_copies.get(model, ([], None))
    if [*map(id, before)] != [*map(id, arrays)]:  # none yet, or new weights
        copy = turned(model)
        fast_copies[model] = arrays, copy
    return copy

@d2l.add_to_class(d2l.GPT)  #@save
def generate_batch(self, prefixes, num_tokens, seed=0, temperature=1.0,
                   top_k=None):
    """`generate_fast` for several prefixes at once: a list for each."""
    vocab_size = self.token_emb.num_embeddings
    prefixes = [d2l.check_prompt(prefix, num_tokens, self.max_len, vocab_size)
                for prefix in prefixes]
    d2l.check_sampling(temperature, top_k)
    if not prefixes or not num_tokens:
        return prefixes
    T = round_up(max(map(len, prefixes)))
    room = round_up(T + num_tokens)
    X = jnp.array([[0] * (T - len(prefix)) + prefix for prefix in prefixes],
                  dtype=jnp.int32)
    starts = jnp.array([T - len(prefix) for prefix in prefixes])
    # as many as there is room for: each depends on the seed and its number
    keys = jax.random.split(jax.random.key(seed), room)
    how = float(temperature), temperature == 0, top_k
    with d2l.evaluation(fast_modules(self)) as model:
        X, ks, vs = fast_prefill(model, X, starts, keys[0], *how, room)
        ids, ks, vs = fast_loop(model, X, ks, vs, T, starts, keys,
                                num_tokens, *how)
    return [prefix + row[:num_tokens]
            for prefix, row in zip(prefixes, ids.tolist(), strict=True)]

@d2l.add_to_class(d2l.GPT)  #@save
def generate_fast(self, prefix, num_tokens, seed=0, temperature=1.0,
                  top_k=None):
    """`generate_cached`, as one program: prefix + continuation, as ids."""
    return self.generate_batch([prefix], num_tokens, seed, temperature,
                               top_k)[0]

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
# cached ~16 tokens/s, fast ~18
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
# together ~25 tokens/s
# ```
# ```output gpt2
# prompts of [1, 6, 8, 9] tokens; alone and together equal: 4 of 4
# together ~25 tokens/s
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
