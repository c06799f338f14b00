# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What the Cache Costs
#
# The cache of the last lesson turns work into memory: a step is cheap because
# what it needs is still there. How much memory is that? The answer decides
# how long a conversation may be, how many of them share one GPU, and, as the
# next lesson shows, how fast the next token can come at all.
#
# We write down a formula for the size, then distrust it: we hold it against
# what our whole process takes, then against the cache alone, to the byte, and
# look for bytes that nobody asked for. With a formula that we can trust we
# then read off what published models pay.

# %%
import jax
import jax.numpy as jnp

from d2l_ext import jax as d2l

run = d2l.current_run()
print(run)

# %% [markdown] tags=["expected"]
# ```output
# run: profile {profile}, text {text}, checkpoint {checkpoint}
# ```

# %%
# prompt: tokens read while we watch the memory; contexts: tokens that a cache
# has room for, which in JAX costs the same whether they are there or not;
# decode, batches: for the exercise on steps
sizes = {
    'small': dict(prompt=1024, contexts=(1024, 2048, 4096), decode=256,
                  batches=(1, 4, 8)),
    'full': dict(prompt=2048, contexts=(1024, 2048, 4096), decode=2048,
                 batches=(1, 4, 16, 32)),
}[run.profile]

# %% [markdown]
# ## A Formula
#
# Every token leaves one key and one value behind, in every block and for
# every head that has keys and values of its own. With $L$ blocks, $H_{kv}$
# such heads of width $d_h$, $n$ tokens in each of $b$ sequences, and $s$
# bytes per element,
#
# $$\text{bytes} = 2 \cdot L \cdot H_{kv} \cdot d_h \cdot n \cdot b \cdot s.$$
#
# In our `GPT` all heads have their own keys and values, so $H_{kv} d_h$ is
# the width of the model. A model of GPT-2's size in 32-bit floats:

# %%
L, H, hd = 12, 12, 64        # blocks, heads, head width
per_token = 2 * L * H * hd * 4
assert per_token == d2l.cache_bytes(L, H, hd, n=1)
print(f'one token: {d2l.format_bytes(per_token)}')
for n in (1024, 2048, 4096):
    print(f'{n} tokens: {d2l.format_bytes(d2l.cache_bytes(L, H, hd, n))}')

# %% [markdown] tags=["expected"]
# ```output
# one token: 72.0 KiB
# 1024 tokens: 72.0 MiB
# 2048 tokens: 144.0 MiB
# 4096 tokens: 288.0 MiB
# ```

# %% [markdown]
# A token's id takes four bytes; what the model has to remember of it takes
# eighteen thousand times as much. A text of 4096 tokens, some three thousand
# words, fills more than half as much memory as all the weights.
#
# ## Closing the Books
#
# The formula counts rows. A process holds buffers, and buffers have a way of
# being larger, or more, than what one needs of them. So we keep a ledger:
# what the process holds before anything is built; the weights and the cache,
# which we count; and what the step takes in passing and gives back, its
# *temporaries*. The sum has to meet the peak that the operating system
# reports (on a GPU: the allocator's). If it does not, we have forgotten
# something.

# %% [markdown] tags=["backend-only"] why="PyTorch cannot know before it runs"
# XLA plans all memory before it runs anything: the compiled step comes with a
# statement of the bytes of its arguments, its results and its temporaries,
# and of the arguments whose memory the results take over. `step_memory`
# compiles a function and adds these up. The compiler itself also takes
# memory, and the process does not give it back, so we look at what it grew
# by.

# %%
jax.block_until_ready(jnp.zeros(1))              # wakes the backend
libraries = d2l.memory_in_use()
model = d2l.GPT(50257, L * hd, H, L, max_len=8192)
prompt = jax.random.randint(jax.random.key(0), (1, sizes['prompt']), 0, 50257)
weights = sum(x.nbytes for x in jax.tree.leaves(model))
ks, vs = jax.block_until_ready(d2l.init_cache(model, *prompt.shape))
before = d2l.memory_in_use()
temporaries = d2l.step_memory(d2l.donated_chunk, model, ks, vs, prompt, 0)
first_call = d2l.memory_in_use() - before
cache = d2l.cache_bytes(L, H, hd, n=prompt.shape[1])
logits, ks, vs = jax.block_until_ready(
    d2l.donated_chunk(model, ks, vs, prompt, 0))

# %%
ledger = {'libraries': libraries, 'first call': first_call,
          'weights': weights, 'cache': cache, 'temporaries': temporaries}
for name, size in ledger.items():
    how = ('measured' if name in ('libraries', 'first call') else 'counted')
    print(f'{name:11} {how:8} {size / 2**20:.1f} MiB')
total, peak = sum(ledger.values()), d2l.peak_memory()
rest = (peak - total) / peak
print(f'sum {total / 2**20:.0f} MiB, peak {peak / 2**20:.0f} MiB')
print(f'not accounted for: {100 * rest:.0f} % of the peak')
assert abs(rest) < 0.25, f'{total} bytes in the ledger, peak {peak}'

# %% [markdown] tags=["expected"]
# ```output small
# libraries measured ~262 MiB
# first call measured ~58 MiB
# weights counted 471.3 MiB
# cache counted 72.0 MiB
# temporaries counted 150.2±15 MiB
# sum ~1013 MiB, peak ~1210 MiB
# not accounted for: <25 % of the peak
# ```
#
# These numbers are those of two CPU cores; no run of ours on a GPU has made
# the next ones.
#
# ```output full
# libraries measured ~0 MiB
# first call measured ~0 MiB
# weights counted 471.3 MiB
# cache counted 144.0 MiB
# temporaries counted ~590 MiB
# sum ~1000 MiB, peak ~1100 MiB
# not accounted for: ~10 % of the peak
# ```

# %% [markdown]
# The weights are the number of parameters times four. Where do the
# temporaries come from?

# %% [markdown] tags=["backend-only"] why="PyTorch fuses scores and softmax"
# Our JAX step returns the logits of the last token only. Its temporaries are
# those of one block at a time, and the largest are the scores of all heads,
# every token against every slot of the buffer. On the CPU XLA writes them
# out, and softmax and mask make copies; PyTorch's fused kernel keeps a small
# tile of them.

# %% tags=["backend-only"] why="PyTorch fuses scores and softmax"
scores = 4 * H * prompt.shape[1] * ks.shape[2]   # fp32
print(f'scores of one block: {d2l.format_bytes(scores)}; the temporaries '
      f'are {temporaries / scores:.1f} times that')

# %% [markdown] tags=["expected"]
# ```output small
# scores of one block: 48.0 MiB; the temporaries are 3.1±0.5 times that
# ```
# ```output full
# scores of one block: 192.0 MiB; the temporaries are ~3 times that
# ```

# %% [markdown]
# What is left over is no small sum: it is larger than the cache. It is the
# reserve of the C library's allocator, which keeps much of what a program
# frees for the next request; library code that was loaded on the way; and
# scratch memory inside single operations. While nothing runs we still see
# some of it.

# %%
idle = d2l.memory_in_use() - libraries - first_call - weights - cache
print(f'at rest, the process holds {idle / 2**20:.0f} MiB more than it uses')

# %% [markdown] tags=["expected"]
# ```output
# at rest, the process holds ~190 MiB more than it uses
# ```

# %% [markdown] tags=["backend-only"] why="torch draws weights in place"
# Most of this is left over from drawing the random weights, each of which
# needs a second array of its size for random bits.

# %% [markdown]
# So the books of a process close to within a quarter, of which the cell above
# makes sure, and for the cache alone that is too coarse. We need a finer
# scale.

# %% [markdown]
# ## What Is Held
#
# Now the cache alone, at several lengths, and to the byte. To *hold* a tensor
# is to keep its buffer alive, all of it, even if the tensor shows only a
# part. So we add up distinct buffers, not shapes, and next to them what is
# still allocated once the step is over and its logits are gone.

# %% [markdown] tags=["backend-only"] why="PyTorch tensors may be views"
# A slice of a JAX array is an array of its own, never a view. And the buffers
# have their final size from the start: in JAX one pays for the room, not for
# the tokens.

# %%
def held_bytes(arrays):  #@save
    """Bytes of the distinct buffers that these arrays keep alive."""
    return sum({x.unsafe_buffer_pointer(): x.on_device_size_in_bytes()
                for x in arrays}.values())

for n in sizes['contexts']:
    ks = vs = None                               # frees those of before
    with d2l.Allocations() as made:
        ks, vs = d2l.init_cache(model, 1, n)
    held = held_bytes([ks, vs])
    formula = d2l.cache_bytes(L, H, hd, n)
    print(f'n={n:5}: formula {d2l.format_bytes(formula)}, held '
          f'{d2l.format_bytes(held)}, allocated '
          f'{d2l.format_bytes(made.alive())}')
    assert held == formula, f'{held} bytes held, formula {formula}'

# %% [markdown] tags=["expected"]
# ```output small
# n= 1024: formula 72.0 MiB, held 72.0 MiB, allocated 72.0 MiB
# n= 2048: formula 144.0 MiB, held 144.0 MiB, allocated 144.0 MiB
# n= 4096: formula 288.0 MiB, held 288.0 MiB, allocated 288.0 MiB
# ```
#
# The book prints 288 MiB at 4096 as well; no run of ours on a GPU has
# confirmed that yet.
#
# ```output full
# n= 1024: formula 72.0 MiB, held 72.0 MiB, allocated 72.0±0.1 MiB
# n= 2048: formula 144.0 MiB, held 144.0 MiB, allocated 144.0±0.1 MiB
# n= 4096: formula 288.0 MiB, held 288.0 MiB, allocated 288.0±0.1 MiB
# ```

# %% [markdown]
# Three ways to count, one number: the formula is not an estimate. It was not
# a matter of course, though. Here is how a cache comes to hold more.
#
# ## Bytes That Nobody Asked For

# %% [markdown] tags=["backend-only"] why="PyTorch writes where it likes"
# No view can pin a buffer in JAX: a slice is a copy. Its way to waste memory
# is to be *functional*. A step returns a new cache and leaves the old one as
# it was, so for a moment there are two, unless the caller donates the old
# one.

# %% tags=["backend-only"] why="PyTorch has no donation"
token = prompt[:, :1]
for name, step in (('old cache kept', d2l.jitted_chunk),
                   ('old cache donated', d2l.donated_chunk)):
    extra = d2l.step_memory(step, model, ks, vs, token, 7)
    print(f'{name}: a step takes {d2l.format_bytes(extra)} beside a cache '
          f'of {d2l.format_bytes(held)}')
rows = jnp.zeros((1, 16, 3 * 128))
v = jnp.split(rows, 3, axis=-1)[2]
print(f'a third of a fused buffer: {v.nbytes} bytes, '
      f'{held_bytes([v])} held')
print(f'keys and values of one block: {d2l.format_bytes(held / L)}')

# %% [markdown] tags=["expected"]
# ```output
# old cache kept: a step takes 312.2±1 MiB beside a cache of 288.0 MiB
# old cache donated: a step takes 24.2±1 MiB beside a cache of 288.0 MiB
# a third of a fused buffer: 8192 bytes, 8192 held
# keys and values of one block: 24.0 MiB
# ```

# %% [markdown] tags=["backend-only"] why="about XLA"
# Donation takes away exactly one cache. What stays are 24 MiB: the step cuts
# the keys and values of one block out of the big buffers, and XLA copies them
# before it multiplies. It does so block after block, so in the end the whole
# cache has been copied once. As memory that is little; as time we meet it
# again in the next lesson.

# %% [markdown]
# ### Exercise: Buffers and Steps
#
# *[code], [extended], about 60 minutes.*
#
# Bytes that are kept, bytes that are made on the way, and the time that both
# take: now you measure all three, on this lesson's `model` with `n` tokens
# in the cache of each sequence. Both notebooks ask for the same fit, of the
# time $t$ of a decode step with $b$ sequences as
#
# $$t \approx t_0 + b\, t_1,$$
#
# by least squares through your own times for every $b$ in `batches`, and for
# what the two would be if nothing counted but bytes: the weights, read once
# for all, and one sequence's cache, each over the bandwidth of the machine
# (`d2l.read_bandwidth`, of the next lesson, measures one). Compare: where
# does the line lie above that, and why?
#
# Times are in seconds, bandwidth is in bytes per second. The check looks at
# bytes and at the form of the fit; how fast your machine is does not matter.

# %% [markdown] tags=["backend-only"] why="JAX has donation, and no views"
# 1. What does a step take at its peak beside its arguments, with `n` slots
#    and the largest batch, when the old cache is kept (`jitted_chunk`) and
#    when it is donated (`donated_chunk`)? The compiler's plan says so
#    (`step_memory`). Where you measure a process instead, use a fresh one
#    for each: a peak does not come down again.
# 2. The fit, for the step that keeps the old cache; and what the bytes alone
#    would take.
# 3. The fit again, for the step that donates. Each call takes the buffers
#    that the one before it returned.

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# The tools are in the lesson: it measures what keeps bytes alive, and what a
# step takes at its peak. Only what is in the function that `d2l.step_memory`
# runs, or compiles, is counted.
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# For the line write one equation t0 + b · t1 = t for each b, and solve all of
# them by least squares: `np.polyfit(bs, ts, 1)` returns the slope first. Make
# the cache before the clock starts, and let the least of several repetitions
# count (`pick=min`).
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# A step in place makes nothing that is as long as the context. In PyTorch it
# writes a slice of a buffer with room for one token more and attends to the
# filled part; in JAX it donates its buffers, and each call takes those that
# the one before it returned.
#
# </details>

# %% exercise="cache-buffers"
n, batches = sizes['decode'], sizes['batches']
# 1. bytes at the peak of a step
donation = {'context': n, 'batch': max(batches), 'kept': ..., 'donated': ...}
# 2. the old cache is kept; reading: seconds, if only bytes counted
copied = {'context': n, 'seconds': {b: ... for b in batches},
          't0': ..., 't1': ...}
reading = {'context': n, 'bandwidth': ..., 't0': ..., 't1': ...}
# 3. the old cache is donated
in_place = {'context': n, 'seconds': {b: ... for b in batches},
            't0': ..., 't1': ...}

# %%
d2l.attempt('cache-buffers', donation=donation, copied=copied,
            reading=reading, in_place=in_place)

# %% [markdown] tags=["expected"]
# ```output
# cache-buffers: not attempted
# ```

# %% [markdown]
# ## What Published Models Pay
#
# The formula needs three numbers of a model, and the comparison with its
# weights one more. A table of six models is in `d2l.MODELS`, each with its
# source. All of them in 16 bits, weights and cache: how much does a token
# cost, and at which length does the cache of *one* sequence outweigh the
# weights? The last number counts in contexts, the longest that the model is
# made for. (With the same type for weights and cache, the length is the same
# for any type.)

# %%
for name, config in d2l.MODELS.items():
    n = config.break_even()
    when = ('never, its window is full before' if n is None else
            f'at {n} tokens ({n / config.max_context:.1f} contexts)')
    print(f'{name:12} {d2l.format_bytes(config.bytes_per_token()):>9} '
          f'per token, = weights {when}')

# %% [markdown] tags=["expected"]
# ```output
# GPT-2 36.0 KiB per token, = weights at 6752 tokens (6.6 contexts)
# Llama-2-70B 320.0 KiB per token, = weights at 421001 tokens (102.8 contexts)
# Llama-3-8B 128.0 KiB per token, = weights at 122533 tokens (15.0 contexts)
# Mistral-7B 128.0 KiB per token, = weights never, its window is full before
# DeepSeek-V2 67.5 KiB per token, = weights at 6828704 tokens (52.1 contexts)
# SmolLM2-135M 22.5 KiB per token, = weights at 11677 tokens (1.4 contexts)
# ```

# %%
contexts = [2**i for i in range(9, 23)]
shares = [[config.cache_bytes(n) / config.weight_bytes() for n in contexts]
          for config in d2l.MODELS.values()]
d2l.plot(contexts, shares + [[1] * len(contexts)], xscale='log',
         yscale='log', xlabel='context (tokens)',
         ylabel='cache / weights (bytes per byte)', figsize=(5, 3.5),
         legend=[*d2l.MODELS, 'the weights'])

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# ```

# %% [markdown]
# Until a window is full, every curve is the same straight line, shifted; what
# shifts it is how the model was built.
#
# * Llama-2-70B has more than five hundred times the parameters of GPT-2, and
#   less than ten times its cache per token. Half of the reason stands in the
#   formula: the cache grows with the width of a model, the weights with its
#   square. The other half is the next item.
# * Llama-2-70B, Llama-3-8B, Mistral-7B and SmolLM2 let several query heads
#   share one key-value head: eight, four, four and three of them. That is the
#   lesson on GQA.
# * DeepSeek-V2 keeps, per block and for all of its 128 heads, one latent of
#   512 numbers and a rotary part of 64, which puts its curve far to the
#   right. (A good part of that distance are its many experts, which count as
#   weights.)
# * Mistral's blocks look back 4096 tokens and no further, so its curve ends
#   in a plateau. That is the lesson on sinks.
#
# One sequence is the friendliest case. Weights are read for all sequences of
# a batch at once, caches are not shared: with 32 sequences every crossing
# comes 32 times as early, and Mistral-7B crosses, too.

# %% [markdown]
# ### Exercise: The Cache of a Large Model
#
# *[paper], about 15 minutes.*
#
# Llama-2-70B has 80 layers, 64 query heads of width 128, and 8 key-value
# heads, which the query heads share. Weights and cache are kept in 16 bits;
# the weights take 140 GB. Work out three numbers by hand, for the model as it
# is and for two that might have been: with a key-value head for each of the
# 64 query heads, and with a single one for all of them. A GB is 10⁹ bytes,
# also on a card.
#
# 1. How many bytes does one token add to the cache?
# 2. At how many tokens is the cache of one sequence as large as the weights?
# 3. Two cards of 80 GB hold the weights once, and caches in what is left. How
#    many sequences of 4096 tokens fit?
#
# Numbers may carry a unit: `'1.5 MB'` and `1500000` are the same answer.

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# The formula of this lesson has seven factors. For one token of one sequence
# two of them are 1. Write the others in a row with a name under each, and ask
# of the number of heads which heads it counts.
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# For the context divide bytes by bytes per token, and look at the units: 140
# GB are 140 · 10⁹ bytes, while 1 KiB is 1024 bytes.
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# Weights and caches share the memory of both cards. Work out first what the
# weights leave, then what one sequence of 4096 tokens takes; a sequence that
# fits only in part does not fit.
#
# </details>

# %% exercise="cache-70b"
# each key is a number of key-value heads
token_bytes = {64: ..., 8: ..., 1: ...}
break_even = {64: ..., 8: ..., 1: ...}       # tokens
sequences = {64: ..., 8: ..., 1: ...}

# %%
d2l.attempt('cache-70b', token_bytes=token_bytes, break_even=break_even,
            sequences=sequences)

# %% [markdown] tags=["expected"]
# ```output
# cache-70b: not attempted
# ```

# %% [markdown]
# ## Turn the Knobs
#
# Choose a model, a context, a batch, a card. Where you run this notebook
# yourself the next cell has controls; a run that nobody watches draws one
# case.

# %%
d2l.explore_cache('Llama-3-8B', context=8192, batch=4, card='RTX 4090')

# %% [markdown] tags=["expected"]
# ```output
# Llama-3-8B, bf16, RTX 4090: weights 15.0 GiB, 128.0 KiB per token
# context 8192, batch 4: cache 4.0 GiB, total 19.0 GiB of 24.0 GiB: fits
# sequences of 8192 tokens beside the weights: 9
# [figure]
# ```

# %% [markdown]
# Things to try: with how many sequences does the card overflow? How many
# would fit if each query head had its own key-value head, as in the first
# Llama models? What does a window of 1024 buy, what do 8 bits?
#
# ## What This Shows, and What It Does Not
#
# * The size of a cache is no estimate: formula, held buffers and the count of
#   what is allocated agree to the byte. The peak of a whole process can be
#   accounted for less closely, since allocators keep a reserve.
# * Bytes that nobody asked for come from views in PyTorch and from copies in
#   JAX. Neither changes a single logit, so only a count of bytes finds them.
# * A long prompt's temporaries can exceed its cache: memory is decided by the
#   worst moment, not by what one keeps.
# * The table says what a cache takes, not what a shorter one gives up.
#   Sharing heads, latents and windows change the model; what that costs in
#   loss is the subject of the later lessons.
# * We counted bytes that lie in memory. Each decode step also has to *read*
#   them, together with all the weights, and that sets its pace: next lesson.
