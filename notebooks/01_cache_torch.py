# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From Recompute to Cache
#
# A language model writes one token at a time. The plainest way to get token
# 1000 is to hand the model all 999 tokens before it, let every layer work on
# every one of them, and keep a single row of the answer. Token 1001 then
# costs the same again, and one token more.
#
# How much of that work is new? In this lesson we train a small model that
# writes, count what its loop costs, find the part of the work that is done
# again and again with the same result, keep that part in a *cache*, and
# measure what is left: first whether the answers stay the same, then how long
# they take.

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

# %% [markdown]
# A number that we print is true for a run, not in general, so the line above
# says which run this is: `small` sizes suit a laptop, `full` ones are the
# book's and want a GPU. Without *The Time Machine* we read the presidential
# addresses of 1898 and 1899 instead. (The checkpoint is for later lessons.)
# Under each cell stands what to expect: a plain number is exact, `±`, `<` and
# `>` are bounds, and `~` marks what differs from machine to machine.

# %%
# contexts: tokens before the one we time; prompt, new: tokens read, written
sizes = {
    'small': dict(contexts=(128, 512, 1024), prompt=128, new=8, reps=1),
    'full': dict(contexts=(512, 1024, 2048, 4096), prompt=3584, new=256,
                 reps=10),
}[run.profile]

# %% [markdown]
# ## A Model That Writes
#
# We want to watch a model that produces readable text, so we train one: three
# blocks, 128 wide, one character at a time. That takes about half a minute in
# PyTorch on two cores and about a minute in JAX, long enough to read ahead.

# %%
data = d2l.TimeMachine(batch_size=16, num_steps=128, num_train=100000,
                       num_val=500, tokenization='char')
torch.manual_seed(0)
lm = d2l.GPT(len(data.vocab), num_hiddens=128, num_heads=4, num_blks=3,
             max_len=256)
lm = lm.to(device)
optimizer = torch.optim.AdamW(lm.parameters(), lr=3e-3, weight_decay=0)
losses = d2l.train_lm(lm, data, optimizer, num_steps=160)
print(f'{len(data.corpus)} characters, {len(data.vocab)} symbols')
print(f'{sum(p.numel() for p in lm.parameters())} parameters')
print(f'nats per character: {losses[0]:.2f} untrained, '
      f'{d2l.val_loss(lm, data):.2f} after {len(losses)} steps')

# %% [markdown] tags=["expected"]
# ```output timemachine
# 173428 characters, 28 symbols
# 593920 parameters
# nats per character: 3.31±0.05 untrained, 1.83±0.1 after 160 steps
# ```
# ```output sotu1898
# 255389 characters, 28 symbols
# 593920 parameters
# nats per character: 3.32±0.05 untrained, 1.79±0.1 after 160 steps
# ```

# %% [markdown]
# Guessing evenly among 28 symbols would cost ln 28, about 3.3 nats; the model
# has nearly halved that. Now it writes. `generate` is the naive loop: each
# step runs the model over the whole history and keeps the last row of logits.

# %%
prompt = data.vocab.encode('the ')
torch.manual_seed(1)
text = lm.generate(prompt, 124, temperature=0.7)
d2l.print_wrapped(data.vocab.decode(text))

# %% [markdown] tags=["expected"]
# ```output
# the ~…
# ~…
# ```

# %% [markdown]
# Not yet prose, but words and their spacing, from a model that a moment ago
# knew no letter. The text differs from machine to machine, since training
# amplifies the last digit of each sum.

# %% [markdown]
# ## What One Token Costs
#
# In a pass over $t$ tokens nearly all work is matrix products, and each of
# the $N$ parameters takes part in one multiplication and one addition per
# token: $2Nt$ floating-point operations, FLOPs for short. (Attention itself
# adds a term that grows with the context; we count it in the lesson on the
# roofline.)
#
# The naive loop passes over $1, 2, \dots, T$ tokens to write $T$ of them,
#
# $$2N(1 + 2 + \dots + T) \approx N T^2,$$
#
# and if each token were read only once, it would be $2NT$. Here are the
# numbers for a model of GPT-2's size.

# %%
gpt2 = d2l.GPT(vocab_size=50257, num_hiddens=768, num_heads=12, num_blks=12,
               max_len=8192).to(device).eval()
N, T = sum(p.numel() for p in gpt2.parameters()), 1024
print(f'{N / 1e6:.1f}M parameters, {2 * N / 1e6:.0f} MFLOP per token')
print(f'{T} tokens: naive {N * T**2 / 1e12:.1f} TFLOP, '
      f'each token once {2 * N * T / 1e12:.2f} TFLOP')

# %% [markdown] tags=["expected"]
# ```output
# 123.6M parameters, 247 MFLOP per token
# 1024 tokens: naive 129.6 TFLOP, each token once 0.25 TFLOP
# ```

# %% [markdown]
# Five hundred times as much work to write a thousand tokens. It would be
# worth it if each pass learnt something new about the old tokens. Does it?

# %% [markdown]
# ## What Is Final
#
# Attention is causal: token $i$ looks at tokens $j \le i$ and at nothing
# later. So whatever follows, the hidden state of token $i$ in every block
# stays as it was, and with it the key and the value that later tokens read
# from it. A new token needs three things in each block: its own query, key
# and value, and the keys and values of all tokens before it. The old
# *queries* are never needed again.
#
# We check this on our trained model: the keys of a passage's first 16
# characters, computed alone, with the passage's next 32 characters, and with
# those 32 in reverse.

# %%
@torch.inference_mode()
def keys_by_block(model, X):
    """Keys before rotation, stacked over blocks: (blocks, B, T, D)."""
    H, keys = model.token_emb(X), []
    for blk in model.blks:
        q, k, v = blk.attention.W_qkv(blk.norm1(H)).chunk(3, dim=-1)
        keys.append(k)
        H = blk(H)
    return torch.stack(keys)

X = torch.tensor(data.corpus[None, 1000:1048]).to(device)    # (1, 48)
other = torch.cat([X[:, :16], X[:, 16:].flip(1)], dim=1)
alone = keys_by_block(lm, X[:, :16])
for name, passage in (('the passage', X), ('the reverse', other)):
    keys = keys_by_block(lm, passage)[:, :, :16]
    print(f'followed by {name}: keys change by at most '
          f'{(keys - alone).abs().max():.1e} of {alone.abs().max():.0f}')

# %% [markdown] tags=["expected"]
# ```output
# followed by the passage: keys change by at most <1e-4 of ~9
# followed by the reverse: keys change by at most <1e-4 of ~9
# ```

# %% [markdown]
# The keys are final up to rounding: a product over more rows may add in
# another order. The same holds for the values, which come from the same rows.
# The naive loop computes these rows anew for every token it writes; we keep
# them instead.
#
# ![Left, a naive step: all five tokens pass through every block to give one
# new token. Right, a cached step: only the newest token passes through, and
# reads the keys and values kept from earlier steps.](img/decode-step.svg)
#
# A step with a cache works on one row. It costs about $2N$ FLOPs, whatever
# the length of the history, plus the attention of one query to all cached
# keys.

# %% [markdown]
# ## One Step with a Cache
#
# The step has to get three things right, and each is easy to get wrong.
#
# 1. **Positions.** The new token is not token 0 of a new text. If $S$ tokens
#    are cached, its rotary angle, or its learned position, is that of
#    position $S$. Keys are stored rotated: their positions never change.
# 2. **What may be seen.** The first chunk, the prompt, needs the causal mask.
#    A single new token needs none, since all that is cached came before it. A
#    chunk of several tokens on a non-empty cache needs both ideas at once:
#    new token $i$ sees the $S$ cached tokens and the new ones up to itself,
#    $j \le S + i$. This one *offset mask* contains the other two as the cases
#    $S = 0$ and $T = 1$.
# 3. **Memory.** The cache outlives the step, so it must own its memory, and
#    it must not run past its end.

# %% [markdown] tags=["backend-only"] why="traps of a growing cache of views"
# In PyTorch the cache of a block is a dictionary with `k` and `v` of shape
# (B, H, S, hd). It starts empty and grows by concatenation. Two details: the
# fused projection, one matrix product for queries, keys and values together,
# writes them into one buffer, and a slice of it is only a view. Keeping the
# view would keep the whole buffer alive, so the first chunk is copied out.
# `contiguous()` is the usual way to do so, but it does nothing to a single
# prompt of one token, whose view is contiguous already; `clone` always
# copies. And `is_causal=True` aligns the mask to the *first* key, which is
# right only while the cache is empty: a single query on a warm cache would
# see key 0 and nothing else.

# %%
# B batch, T new tokens, S cached tokens, H heads, hd head width, V vocabulary
@d2l.add_to_class(d2l.GPT.CausalAttention)  #@save
def forward_step(self, X, cache):
    """Attend from T new tokens to the cached ones and among themselves."""
    T, S = X.shape[1], cache['k'].shape[2] if cache else 0
    q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
               for x in self.W_qkv(X).chunk(3, dim=-1))      # (B, H, T, hd)
    if self.rope:
        q, k = (d2l.rope(x, S, self.base) for x in (q, k))
    if cache:
        k = torch.cat([cache['k'], k], dim=2)                # (B, H, S+T, hd)
        v = torch.cat([cache['v'], v], dim=2)
    else:  # a view would keep the fused buffer alive
        k, v = (x.clone(memory_format=torch.contiguous_format)
                for x in (k, v))
    cache['k'], cache['v'] = k, v
    # one new token may see everything, so it needs no mask
    mask = None if T == 1 else d2l.attention_mask(
        T, S + T, causal=True, device=q.device)              # j <= S + i
    Y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return self.W_o(Y.transpose(1, 2).flatten(2))

# %% [markdown]
# The model's step refuses what the cache is not made for before it touches
# anything, adds learned positions if there are any, lets each block attend
# with its part of the cache, and is otherwise the forward pass that we know.

# %%
@d2l.add_to_class(d2l.GPT)  #@save
def forward_cached(self, X, caches):
    """Logits (B, T, V) of new tokens X (B, T); the caches grow by them."""
    d2l.check_same('blocks', len(caches), len(self.blks))
    T, S = X.shape[1], caches[0]['k'].shape[2] if caches[0] else 0
    d2l.check_room(S, T, self.max_len)
    d2l.check_same('sequences', len(caches[0]['k']) if S else len(X), len(X))
    H = self.token_emb(X)
    if self.pos == 'learned':
        H = H + self.pos_emb.weight[S:S + T]
    for blk, cache in zip(self.blks, caches, strict=True):
        Y = blk.attention.forward_step(blk.before_attention(H), cache)
        H = blk.after_attention(H, Y)
    return self.norm(H) @ self.token_emb.weight.T

# %% [markdown]
# ## Same Logits
#
# A cache is only worth having if nobody can tell that it is there. We take a
# small untrained model, feed two sequences of 48 tokens in one pass, then the
# same tokens through the cache, 16 at once and the rest one by one, and
# compare the logits.

# %%
@torch.inference_mode()
def cache_error(model, X, chunks):
    """Largest difference between one full pass and a pass in chunks."""
    full, caches = model(X), [{} for _ in model.blks]
    logits = [model.forward_cached(x, caches) for x in X.split(chunks, dim=1)]
    return (torch.cat(logits, dim=1) - full).abs().max().item()

torch.manual_seed(0)
X = torch.randint(97, (2, 48)).to(device)
models = {pos: d2l.GPT(97, 128, 4, 3, pos=pos).to(device).eval()
          for pos in ('rope', 'learned')}
for pos, model in models.items():
    error = cache_error(model, X, [16] + 32 * [1])
    print(f'{pos}: max |full - cached| = {error:.2e}')
print(f'largest logit: {model(X).abs().max():.1f}')

# %% [markdown] tags=["expected"]
# ```output
# rope: max |full - cached| = <1e-5
# learned: max |full - cached| = <1e-5
# largest logit: 1.0±0.5
# ```

# %% [markdown]
# The difference is less than a hundred-thousandth of the largest logit. What
# remains is rounding: 48 rows at once and one row at a time do not add in the
# same order. The book prints 3.65e-07 and 3.32e-07 for PyTorch, 6.59e-07 and
# 7.75e-07 for JAX, from its own machine.

# %% [markdown]
# ## Any Split Will Do
#
# Nothing in the offset mask cares where a chunk ends. So a prompt may arrive
# in pieces: a system prompt kept from last time, then the user's words; or a
# long document in chunks that fit into memory. Every split of the same 48
# tokens, with both kinds of positions, has to give the same logits.

# %%
splits = {'all at once': [48], 'halves': [24, 24],
          'ragged': [1, 16, 24] + 7 * [1], 'one by one': 48 * [1]}
for name, chunks in splits.items():
    worst = max(cache_error(model, X, chunks) for model in models.values())
    print(f'{name} (chunks: {len(chunks)}): max difference {worst:.2e}')

# %% [markdown] tags=["expected"]
# ```output
# all at once (chunks: 1): max difference <1e-5
# halves (chunks: 2): max difference <1e-5
# ragged (chunks: 10): max difference <1e-5
# one by one (chunks: 48): max difference <1e-5
# ```

# %% [markdown]
# ### Exercise: A Forgotten Offset
#
# *[code], [paper], [extended], about 60 minutes.*
#
# None of the three things raises an error when it is wrong. Take the first: a
# step that forgets its offset, so that every decoded token is rotated as if it
# stood at position 0, while the prompt is right.
#
# 1. Write that faulty step for one layer of `GPT`. Then measure what it does:
#    16 tokens as a prompt and 32 one by one, through the first block's
#    attention of a rotary model, say `models['rope']`. What is the largest
#    difference between its outputs and those of the correct step?
# 2. Attention sees positions only as the *offset* of a query and a key, the
#    position at which the query is rotated less that of the key. In the
#    correct cache it is $p - j$ for the query of token $p$ and the key of
#    token $j$. What is it in the faulty one, for decoded $p$ and a token $j$
#    of the prompt; and for decoded $p$ and an earlier decoded token $i$? What
#    can the model no longer know?
# 3. What does the mistake cost a model that has read? Load one, `model,
#    encoding, name = d2l.load_checkpoint()`, which takes some seconds and
#    about 2 GB, and take the first tokens of `d2l.read_text()`. Prefill 512
#    of them; then feed 48 more one at a time (512, if you have a GPU), once
#    where they belong and once each as if at position 0. Of a GPT-2 these are
#    the learned positions that are added to the embedding; SmolLM2 has none
#    and rotates, so there it is the rotation again, in every block. Give the
#    mean loss, in nats per token, of what follows positions 512 and later,
#    for both. Make sure first that the correct one is that of a single pass
#    over all of the text.

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# The step of this lesson tells `rope` where the new tokens begin. The layer's
# own `project(X)` rotates from an offset that you may leave out. All else
# stays: the cache grows, the mask is the same. To compare, keep two caches
# and feed both steps the same tokens.
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# Write the position at which each of three is rotated next to it: the query,
# a key of the prompt, a key of an earlier decoded token. A score depends on
# the difference of two such numbers only.
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# For the checkpoint, walk through the blocks yourself: `before_attention`,
# then `project(Z, Z, Z, position)`, which rotates only if the model does,
# then attend to the cache, `W_o` and `after_attention`. A learned position is
# added to the embedding before. One function with `position` as an argument
# does for both caches, and both begin with the same prompt.
#
# </details>

# %% exercise="missing-offset"
# B batch, T new tokens, S cached tokens, H heads, hd head width
def faulty_step(attention, X, cache):
    """Y (B, T, D) for new tokens X (B, T, D).

    attention: a GPT.CausalAttention; cache: a dict, empty at first;
    afterwards it holds `k` and `v`, each (B, H, S + T, hd).
    """
    ...

deviation = ...                              # largest absolute difference

def to_prefix(p, j):
    """Offset in the faulty cache: decoded token p, token j of the prompt."""
    ...

def to_decoded(p, i):
    """Offset in the faulty cache: decoded token p, an earlier one i."""
    ...

losses = {'correct': ..., 'faulty': ...}     # mean nats, from position 512 on

# %%
d2l.attempt('missing-offset', step=d2l.try_step(faulty_step),
            deviation=deviation, to_prefix=to_prefix, to_decoded=to_decoded,
            losses=losses)

# %% [markdown] tags=["expected"]
# ```output
# missing-offset: not attempted
# ```

# %% [markdown]
# ## Generating with the Cache
#
# Generation now has two phases. **Prefill** reads the prompt in one pass; its
# length decides the *time to first token*. The **decode loop** then feeds one
# token per step and decides the *tokens per second*. The last token is drawn
# but never fed: nobody asks what follows it.

# %%
@d2l.add_to_class(d2l.GPT)  #@save
@torch.inference_mode()
def generate_cached(self, prefix, num_tokens, temperature=1.0, top_k=None):
    """`generate` with a cache: prefix + continuation, a list of ids."""
    vocab_size, device = len(self.token_emb.weight), self.norm.weight.device
    prefix = d2l.check_prompt(prefix, num_tokens, self.max_len, vocab_size)
    d2l.check_sampling(temperature, top_k)
    X, caches = torch.tensor([prefix], device=device), [{} for _ in self.blks]
    ids = [X]
    with d2l.evaluation(self):
        for _ in range(num_tokens):
            logits = self.forward_cached(X, caches)[:, -1]   # (1, V)
            X = d2l.sample_token(logits, temperature, top_k)
            ids.append(X)
    return torch.cat(ids, dim=1)[0].tolist()

# %% [markdown]
# The same prompt, the same seed, both loops. The texts must be equal letter
# by letter, greedily (temperature 0) and sampled.

# %%
def both_loops(temperature):
    """The naive and the cached continuation from the same seed."""
    for generate in (lm.generate, lm.generate_cached):
        torch.manual_seed(1)
        yield generate(prompt, 124, temperature=temperature)

for temperature in (0, 0.7):
    naive, cached = both_loops(temperature)
    same = sum(a == b for a, b in zip(naive, cached, strict=True))
    print(f'temperature {temperature}: {same} of {len(cached)} equal')
    d2l.print_wrapped(data.vocab.decode(cached))

# %% [markdown] tags=["expected"]
# ```output
# temperature 0: 128 of 128 equal
# the ~…
# ~…
# temperature 0.7: 128 of 128 equal
# the ~…
# ~…
# ```

# %% [markdown]
# Greedy text soon runs in circles, as greedy text does; the sampled one is
# the text from above, at a fraction of the work.
#
# A generator is also judged by its edges. Temperature 0 means the likeliest
# token, and of equally likely ones the lowest id; `top_k` keeps exactly $k$
# tokens, or all if there are fewer; and a text that cannot fit is refused
# before any work is done.

# %%
logits = torch.tensor([[1., 3., 3., 0.]])
greedy = d2l.sample_token(logits, temperature=0).item()
print(f'two likeliest tokens tie, greedy takes {greedy}')
for k in (1, 2, 99):
    drawn = {d2l.sample_token(logits, temperature=3, top_k=k).item()
             for _ in range(100)}
    print(f'top_k={k}: draws from {sorted(drawn)}')
for new, k in ((0, None), (252, None), (253, None), (4, 0)):
    try:
        print(f'{len(lm.generate_cached(prompt, new, top_k=k))} tokens')
    except ValueError as error:
        print(f'refused: {error}')

# %% [markdown] tags=["expected"]
# ```output
# two likeliest tokens tie, greedy takes 1
# top_k=1: draws from [1]
# top_k=2: draws from [1, 2]
# top_k=99: draws from [0, 1, 2, 3]
# 4 tokens
# 256 tokens
# refused: 4 tokens + 253 new > 256, the most there is room for
# refused: top_k=0: expected at least 1, a whole number, or None for all tokens
# ```

# %% [markdown] tags=["backend-only"] why="JAX arrays are never views"
# What does the copy out of the fused buffer save? We look at what one cached
# value keeps alive, as a view and after our step.

# %% tags=["backend-only"] why="JAX arrays are never views"
caches = [{} for _ in lm.blks]
with torch.inference_mode():
    lm.forward_cached(torch.tensor([prompt]).to(device), caches)
    fused = lm.blks[0].attention.W_qkv(torch.zeros(1, 4, 128, device=device))
view, v = fused.chunk(3, dim=-1)[2], caches[0]['v']
for name, x in (('a view', view), ('our step', v)):
    print(f'{name}: {x.nbytes} bytes of values, '
          f'{x.untyped_storage().nbytes()} kept alive')

# %% [markdown] tags=["expected"]
# ```output
# a view: 2048 bytes of values, 6144 kept alive
# our step: 2048 bytes of values, 2048 kept alive
# ```

# %% [markdown]
# ## Time per Token
#
# Now the measurement that the cache was built for. We take the model of
# GPT-2's size, untrained since time does not depend on what it says, put it
# behind contexts of growing length, and time one more token both ways. For
# the naive step that is a pass over the whole context; for the cached step,
# one row on a cache of that length.

# %%
@torch.inference_mode()
def step_times(n):
    """Seconds for one more token after n: (naive, cached)."""
    X = torch.randint(50257, (1, n)).to(device)
    rows = {name: torch.randn(1, 12, n, 64, device=device) for name in 'kv'}
    # each call branches off the same cache: concatenation leaves it alone
    return (d2l.timeit(lambda: gpt2(X), sizes['reps']),
            d2l.timeit(lambda: gpt2.forward_cached(
                X[:, :1], [dict(rows) for _ in gpt2.blks]), sizes['reps']))

times = {n: step_times(n) for n in sizes['contexts']}
for n, (naive, cached) in times.items():
    print(f'n={n:5}: naive {naive * 1e3:.2f} ms/token, '
          f'cached {cached * 1e3:.2f} ms/token')

# %% [markdown] tags=["expected"]
# ```output small
# n= 128: naive ~470 ms/token, cached ~73 ms/token
# n= 512: naive ~1480 ms/token, cached ~68 ms/token
# n= 1024: naive ~3550 ms/token, cached ~130 ms/token
# ```
#
# The figures for `full` are the book's, from a GPU of the RTX 4090 class; no
# run of ours has confirmed them yet.
#
# ```output full
# n= 512: naive ~10.12 ms/token, cached ~9.77 ms/token
# n= 1024: naive ~15.22 ms/token, cached ~9.83 ms/token
# n= 2048: naive ~33.74 ms/token, cached ~9.79 ms/token
# n= 4096: naive ~77.45 ms/token, cached ~11.91 ms/token
# ```

# %%
contexts, (naive, cached) = list(times), zip(*times.values(), strict=True)
d2l.plot(contexts, [[1e3 * s for s in naive], [1e3 * s for s in cached]],
         xlabel='context (tokens)', ylabel='time per token (ms)',
         legend=['naive', 'cached'], xscale='log', yscale='log')
assert naive[-1] > 2 * naive[0], (
    f'naive: {naive[0]:.3f} s grew only to {naive[-1]:.3f} s')
growth = cached[-1] / cached[0], naive[-1] / naive[0]
assert 2 * growth[0] < growth[1], (
    f'growth: cached {growth[0]:.1f}, naive {growth[1]:.1f}')
assert naive[-1] > 4 * cached[-1], (
    f'naive {naive[-1]:.3f} s against cached {cached[-1]:.3f} s')

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# ```

# %% [markdown]
# The naive step grows with the context. The cached step grows, too, but far
# less: here we hold it to less than half the naive factor. It is not flat:
# its query reads all cached keys and values, which the next lesson counts in
# bytes. What else a step of one row waits for is the subject of the lesson on
# the roofline.

# %% [markdown]
# ## From Prompt to Text
#
# Last, the whole way from a prompt to its continuation. Both loops read the
# same prompt and write the same number of tokens.

# %%
prompt = torch.randint(50257, (sizes['prompt'],)).tolist()
rates = []
for name, call in (
        ('naive', lambda: gpt2.generate(prompt, sizes['new'])),
        ('cached', lambda: gpt2.generate_cached(prompt, sizes['new']))):
    rates.append(sizes['new'] / d2l.timeit(call, reps=1))
    print(f'{sizes["new"]} tokens after {sizes["prompt"]}: '
          f'{name} {rates[-1]:.1f} tokens/s')
assert rates[1] > 1.5 * rates[0], (
    f'naive {rates[0]:.1f}, cached {rates[1]:.1f} tokens/s')

# %% [markdown] tags=["expected"]
# ```output small
# 8 tokens after 128: naive ~2.1 tokens/s
# 8 tokens after 128: cached ~6.5 tokens/s
# ```
#
# Again the book's figures, not yet confirmed by a run of ours:
#
# ```output full
# 256 tokens after 3584: naive ~13.4 tokens/s
# 256 tokens after 3584: cached ~59.5 tokens/s
# ```

# %% [markdown]
# Counted in tokens read, the naive loop reads the prompt again for every
# token that it writes and the cached loop reads it once, so the gain grows
# with the length of the continuation. The ratio of tokens read is as much as
# one may hope for, and measured gains fall short of it: a pass over many rows
# uses each parameter that it loads many times, a step over one row only once.

# %% [markdown]
# ### Exercise: What Generation Costs
#
# *[paper], [code], about 20 minutes.*
#
# A prompt of $P$ tokens is given and $T$ more are written, one at a time, by a
# model with $N$ parameters; a pass over $t$ tokens costs $2Nt$ FLOPs.
#
# 1. Write the exact cost of both schedules as functions. Naive: one pass over
#    the whole history for each new token. Cached: one prefill, then single
#    steps. Be exact about which tokens are fed.
# 2. What is the ratio of the two for the book's sizes, $P = 3584$ and
#    $T = 256$?
# 3. The book measured far less than that. Work out why for one token: on a
#    card with 83 TFLOP/s and 1 TB/s, with weights of 32 bits that each pass
#    reads once, how many times faster than the naive pass over 3584 tokens can
#    a cached step be at most? Leave attention and the cache out; a pass takes
#    as long as the slower of its arithmetic and its reads.

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# Play it through for a prompt of three tokens and two new ones: which tokens
# go into each pass? The last token is written, and nobody asks what follows
# it.
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# The lengths of the naive passes are consecutive numbers, from the prompt on.
# The cached schedule reads each token once, except for one that it never
# reads.
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# For the second half work out two times for each pass: its FLOPs over 83
# TFLOP/s, and its bytes of weights over 1 TB/s. The longer one counts; it is
# not the same one for both passes.
#
# </details>

# %% exercise="generation-cost"
def naive_flops(N, P, T):
    """FLOPs of the naive schedule."""
    ...

def cached_flops(N, P, T):
    """FLOPs of the cached schedule."""
    ...

ratio = ...                                  # naive over cached
step_gain = ...                              # naive pass over cached step

# %%
d2l.attempt('generation-cost', naive_flops=naive_flops,
            cached_flops=cached_flops, ratio=ratio, step_gain=step_gain)

# %% [markdown] tags=["expected"]
# ```output
# generation-cost: not attempted
# ```

# %% [markdown]
# ## What This Shows, and What It Does Not
#
# * Keys and values of past tokens are final, so recomputing them is waste;
#   with a cache the logits agree up to rounding, for rotary and for learned
#   positions, and for every split of a prompt.
# * A cached step needs the right position, the right mask, and memory of its
#   own. None of them raises an error when it is wrong, which is why we
#   compared logits and not only read the text.
# * Time per token no longer grows with the history as the naive loop's does.
#   We measured one model on one machine; the ratio depends on both.
# * We did not ask what the cache costs. It takes memory for every token of
#   every sequence, and that memory must be read again at every step. How
#   much, and how long that takes, are the next two lessons.
