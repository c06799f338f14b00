# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Keys and Values of Low Rank
#
# Each token adds a vector to the cache of each block: its keys and values,
# all heads in a row. Grouped heads make that vector shorter before training
# starts. But does it need the room that it has? If the vectors of all tokens
# stayed close to a subspace of $r$ directions, $r$ coordinates per token
# would do.
#
# *Multi-head latent attention* (MLA; DeepSeek-AI, *DeepSeek-V2*, 2024) trains
# a model to that end: a token leaves a *latent* of $r$ numbers, and two
# learned matrices make the keys and values of all heads from it. Whether a
# model leaves room for such a squeeze can be seen in models that were never
# trained so. In this lesson we load one, write down its keys and values while
# it reads, and see what its loss says when they are squeezed.

# %%
import math

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
# tokens: in a passage; tail: losses count from this position on; new: tokens
# that we generate; more: further passages
sizes = {
    'small': dict(tokens=1024, tail=512, new=32, more=1),
    'full': dict(tokens=1024, tail=512, new=32, more=7),
}[run.profile]
ranks = {'gpt2': (256, 128), 'smollm2': (256, 192, 128)}[run.checkpoint]

# %% [markdown]
# ## A Model That Has Read
#
# Two pretrained models of about the same size serve us. *GPT-2* (Radford et
# al., 2019) has learned positions and a key-value head for every query head.
# *SmolLM2* (Allal et al., 2025) rotates, and three query heads share one
# key-value head. Both fit our `GPT` to the last parameter; what a
# *checkpoint*, a file of trained weights, calls its tensors stands in a table,
# `d2l_ext/checkpoints.py`. Of SmolLM2 we read the *Instruct* version in a
# quantized file, about six bits per number, which is turned into fp32. The
# losses of the original weights would differ a little.
#
# Below each cell stands what it prints, for either checkpoint. Losses of GPT-2
# are figures of the book, on *The Time Machine*. No run of ours confirms them,
# and where the book has none there is a `~…`.

# %%
model, encoding, name = d2l.load_checkpoint()
num_params = sum(p.numel() for p in model.parameters())
attention = model.blks[0].attention
H = attention.num_heads
G = getattr(attention, 'num_kv_heads', H)  # GPT-2 shares none
hd = model.token_emb.weight.shape[1] // H
print(f'{name}: {num_params / 1e6:.1f}M parameters, {len(model.blks)} blocks')
print(f'a block: {H} query heads, {G} key-value heads of width {hd}')

# %% [markdown] tags=["expected"]
# ```output smollm2
# smollm2: 134.5M parameters, 30 blocks
# a block: 9 query heads, 3 key-value heads of width 64
# ```
# ```output gpt2
# gpt2: 124.4M parameters, 12 blocks
# a block: 12 query heads, 12 key-value heads of width 64
# ```

# %% [markdown]
# Does it write? We give it the beginning of a sentence and always take the
# likeliest token, once by reading everything again for each token and once
# with the cache. The two texts are the same.

# %%
prompt = 'A language model writes one token after another. To do so, it'
start = encoding.encode_ordinary(prompt)
naive = model.generate(start, sizes['new'], temperature=0)
ids = model.generate_cached(start, sizes['new'], temperature=0)
assert ids == naive, f'cached {ids}, naive {naive}'
d2l.print_wrapped(encoding.decode(ids))

# %% [markdown] tags=["expected"]
# ```output smollm2
# A language model writes one token after another. To do so, it uses a hash
#     function to create a hash of the previous token. This hash is then used
#     to create a new token. The hash function is designed to be efficient
# ```
# ```output gpt2
# ~⋮
# ```

# %% [markdown]
# What SmolLM2 writes is English, and wrong: a model of this size knows how
# sentences go, not how models work. We come back to the numbers behind this
# text in a moment.
#
# ## Reading Through the Blocks
#
# To see keys and values, and to change them, `forward_blocks` walks through
# the blocks and hands over what lies between projection and output:
# `attn_fn(q, k, v, i)` gets the queries, keys and values of block `i`, already
# rotated where the model rotates, and returns what the heads read. Keys and
# values come with their own number of heads, never repeated. What a block does
# besides, norms, residual connections and feed-forward network, stays in its
# methods `before_attention` and `after_attention`.

# %%
# B batch, T tokens, H query heads, G key-value heads, hd head width
@torch.inference_mode()
def forward_blocks(model, X, attn_fn):  #@save
    """Logits (B, T, V) of X (B, T), attn_fn in place of attention."""
    d2l.check_room(0, X.shape[1], model.max_len)
    h = model.token_emb(X)                                   # (B, T, D)
    if model.pos == 'learned':
        h = h + model.pos_emb.weight[:X.shape[1]]
    for i, blk in enumerate(model.blks):
        z = blk.before_attention(h)
        q, k, v = blk.attention.project(z, z, z)  # (B, H, T, hd), (B, G, ..)
        Y = attn_fn(q, k, v, i)
        d2l.check_shape(Y, q.shape)
        Y = blk.attention.W_o(Y.transpose(1, 2).flatten(2))
        h = blk.after_attention(h, Y)
    return model.norm(h) @ model.token_emb.weight.T

def stock_attention(q, k, v, i=0):  #@save
    """What the model does itself: causal attention, shared heads."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                          enable_gqa=True)

# %% [markdown]
# With the model's own attention the walk must give the model's own logits. On
# the text from above we look at one more thing: how close the closest choice
# was. The likeliest token always led by far more than rounding moves a logit,
# about $10^{-4}$ here. That is why PyTorch, JAX and any machine that computes
# in fp32 write the same text.

# %%
X = torch.tensor([ids], device=device)
with torch.inference_mode():
    expected = model(X)                                      # (1, T, V)
logits = forward_blocks(model, X, stock_attention)
print(f'blocks against model: max difference '
      f'{(logits - expected).abs().max():.1e}')
best, second = logits[0, len(start) - 1:-1].topk(2).values.T
print(f'closest choice: {(best - second).min():.3f} ahead')

# %% [markdown] tags=["expected"]
# ```output smollm2
# blocks against model: max difference <1e-4
# closest choice: 0.050±0.005 ahead
# ```
# ```output gpt2
# blocks against model: max difference <1e-4
# closest choice: >0 ahead
# ```

# %% [markdown]
# Now a passage: the first 1024 tokens of the run's text. We take the mean
# loss of what follows positions 512 and later, where every prediction has a
# long context behind it. While the model reads, we keep its keys and values.

# %%
text_ids = encoding.encode_ordinary(d2l.read_text())

def passage(number):
    """Token ids (1, tokens) of a passage of the run's text, from 0 on."""
    first = number * sizes['tokens']
    return torch.tensor([text_ids[first:first + sizes['tokens']]],
                        device=device)

X, kept = passage(0), []

def tail_loss(logits, X=X):
    """Mean loss (nats per token) of what follows the positions from 512."""
    return d2l.token_losses(logits, X)[0, sizes['tail']:].mean().item()

def keep(q, k, v, i):
    """Stock attention that writes down keys and values."""
    kept.append((k, v))
    return stock_attention(q, k, v)

full = tail_loss(forward_blocks(model, X, keep))
print(f'full attention: loss {full:.2f}, perplexity {math.exp(full):.0f}')

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# full attention: loss 3.09±0.02, perplexity 22±1
# ```
# ```output smollm2 sotu1898
# full attention: loss 3.93±0.02, perplexity 51±1
# ```
# ```output gpt2 timemachine
# full attention: loss 3.58±0.02, perplexity 36±1
# ```
# ```output gpt2 sotu1898
# full attention: ~…
# ```

# %% [markdown]
# ## How Many Directions?
#
# For one block, the keys and values of the passage are a matrix $M$ with a
# row per token and $w = 2 H_{kv} d_h$ columns. Its singular value
# decomposition $M = U S V^\top$ sorts the directions of the rows by how much
# they carry. Cut off after $r$ of them, it is the best approximation of rank
# $r$ there is, in squared error. Let us call the sum of the squares of all
# entries the *energy* of $M$. It is also the sum of the squared singular
# values, so these say how fast the error falls. On a CPU both backends call
# LAPACK for the decomposition, which is fast, and exact enough: in fp32 their
# singular values agree to one part in a million of the largest.

# %%
def rows(k, v):  #@save
    """A row per token: keys, then values of all heads (B, T, 2 G hd)."""
    return torch.cat([k, v], dim=1).transpose(1, 2).flatten(2)

def directions(M, share=0.99):
    """Singular values; how many directions carry that share of the energy."""
    S = torch.linalg.svdvals(M)
    energy = (S**2).cumsum(0) / (S**2).sum()
    return S.cpu(), int((energy < share).sum()) + 1

def key_length(k, v):
    """Mean length of keys, in mean lengths of values."""
    return (k.norm(dim=-1).mean() / v.norm(dim=-1).mean()).item()

w, L = 2 * G * hd, len(kept)
chosen = (0, L // 3, 2 * L // 3, L - 1)
spectra = {i: directions(rows(*kept[i])[0]) for i in chosen}
for i in chosen:
    S, number = spectra[i]
    print(f'block {i:2}: 99 % of the energy in {number} of {len(S)} '
          f'directions; key/value {key_length(*kept[i]):.1f}')

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# block  0: 99 % of the energy in 93±2 of 384 directions; key/value 29.4±0.2
# block 10: 99 % of the energy in 185±2 of 384 directions; key/value 4.7±0.2
# block 20: 99 % of the energy in 234±2 of 384 directions; key/value 2.0±0.1
# block 29: 99 % of the energy in 252±2 of 384 directions; key/value 1.3±0.1
# ```
# ```output smollm2 sotu1898
# block  0: 99 % of the energy in 93±2 of 384 directions; key/value 29.1±0.2
# block 10: 99 % of the energy in 193±2 of 384 directions; key/value 4.5±0.2
# block 20: 99 % of the energy in 233±2 of 384 directions; key/value 2.0±0.1
# block 29: 99 % of the energy in 247±2 of 384 directions; key/value 1.4±0.1
# ```
# ```output gpt2
# block  0: ~…
# block  4: ~…
# block  8: ~…
# block 11: ~…
# ```

# %% [markdown]
# In these four blocks of SmolLM2 a quarter to two thirds of the directions
# carry nearly everything, fewer in the lower ones than in the higher. With
# care: energy is a sum of squares, so long keys outweigh short values. The
# last column has their mean lengths, one over the other, and in block 0 the
# keys fill the count alone. We count keys and values apart below. And
# one per cent of the energy is a tenth in length, on which attention may well
# hang. (Of GPT-2's 1536 directions a passage of 1024 tokens can show no more
# than 1024.)

# %%
curves = [spectra[i][0] / spectra[i][0][0] for i in chosen]
d2l.plot([range(1, 1 + len(curve)) for curve in curves], curves,
         legend=[f'block {i}' for i in chosen], xlabel='direction',
         ylabel='singular value / largest', yscale='log',
         fmts=('-', '--', '-.', ':'), figsize=(4.5, 3))

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# ```

# %% [markdown]
# ## Loss against Rank
#
# Squared error is not what we care about; the loss is. `lowrank_kv(r)` makes
# an `attn_fn` that replaces the keys and values of each block by their best
# approximation of rank $r$, then attends as ever. The blocks follow one
# another, so a block approximates what it gets from a model whose earlier
# blocks were squeezed as well.

# %%
def squeeze(M, r):  #@save
    """The matrices of rank r next to M (B, T, w), in squared error."""
    if not 1 <= r <= min(M.shape[-2:]):
        raise ValueError(f'rank {r}: expected 1 to {min(M.shape[-2:])}')
    U, S, Vh = torch.linalg.svd(M, full_matrices=False)
    return U[..., :r] * S[..., None, :r] @ Vh[..., :r, :]

def lowrank_kv(r):  #@save
    """An attn_fn that reads keys and values of rank r."""
    def attn_fn(q, k, v, i):
        M = squeeze(rows(k, v), r).unflatten(-1, (-1, k.shape[-1]))
        k, v = M.transpose(1, 2).chunk(2, dim=1)
        return stock_attention(q, k, v)
    return attn_fn

losses = {r: tail_loss(forward_blocks(model, X, lowrank_kv(r)))
          for r in ranks}
for r, loss in losses.items():
    print(f'rank {r}, {w} numbers per token: loss {loss:.2f}, '
          f'perplexity {math.exp(loss):.0f}')

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# rank 256, 384 numbers per token: loss 3.19±0.02, perplexity 24±1
# rank 192, 384 numbers per token: loss 3.29±0.02, perplexity 27±1
# rank 128, 384 numbers per token: loss 3.60±0.02, perplexity 36±1
# ```
# ```output smollm2 sotu1898
# rank 256, 384 numbers per token: loss 4.18±0.02, perplexity 65±1
# rank 192, 384 numbers per token: loss 4.43±0.02, perplexity 84±1
# rank 128, 384 numbers per token: loss 4.63±0.02, perplexity 103±1
# ```
# ```output gpt2 timemachine
# rank 256, 1536 numbers per token: loss 3.49±0.02, perplexity 33±1
# rank 128, 1536 numbers per token: loss 3.66±0.02, perplexity 39±1
# ```
# ```output gpt2 sotu1898
# rank 256, 1536 numbers per token: ~…
# rank 128, 1536 numbers per token: ~…
# ```

# %% [markdown]
# What kind of number is this? The directions were fitted to the very passage
# that is then scored: an *oracle*. No other $r$ directions come closer, in
# squared error, to what this cache holds. But they can be had only after the
# passage is read: they know the tokens that are then predicted, and they
# belong to this passage alone. (Directions from *another* passage are left as
# an exercise.) And it is a bound on the error, not on the loss: the book's
# loss of GPT-2 falls from 3.58 to 3.49 at rank 256, below the full model.
#
# The two checkpoints differ. GPT-2's loss falls by 0.09 at a sixth of its
# 1536 numbers per token and rises by 0.08 at a twelfth (a quarter and an
# eighth of the directions that 1024 tokens can have). SmolLM2 pays 0.10 on
# the novel and 0.25 on the address at two thirds of its 384. One reason may
# be that grouped heads have spent redundancy already: nine query heads share
# what three key-value heads store, so what is stored is used more fully.
# There is another reason, and it can be measured.
#
# ## Rotation Costs Rank
#
# Take a key that is the same at every position: one direction, rank one. RoPE
# turns its pairs by angles that grow with the position, each pair at its own
# speed. The rows are now different everywhere, and the matrix they form can
# have any rank up to the head width. So we undo the rotation of the keys,
# count directions again, and compare with the values, which are never
# rotated. To turn back, exchange the two numbers of each pair, rotate, and
# exchange them again: in the mirror the same rotation runs backwards.

# %%
def swap(x):
    """The two numbers of each pair exchanged."""
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)

def turn(k):
    return d2l.rope(k, base=attention.base) if attention.rope else k

def turn_back(k):
    """The keys as they were before the model rotated them."""
    return swap(turn(swap(k))) if attention.rope else k

error = max((turn(turn_back(k)) - k).abs().max() for k, _ in kept)
print(f'there and back: max difference {error:.1e}')
counts = {'keys as cached': [k for k, _ in kept],
          'values': [v for _, v in kept],
          'keys before rotation': [turn_back(k) for k, _ in kept]}
counts = {what: [directions(x[0].transpose(0, 1).flatten(1))[1] for x in xs]
          for what, xs in counts.items()}
assert all(a < b for a, b in zip(
    counts['keys before rotation'], counts['keys as cached'], strict=True)
    ) or not attention.rope, f'rotation costs no rank: {counts}'
for what, numbers in counts.items():
    print(f'{what}: 99 % in {sum(numbers) / L:.0f} of {w // 2} directions, '
          f'mean over blocks')

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# there and back: max difference <1e-4
# keys as cached: 99 % in 129±2 of 192 directions, mean over blocks
# values: 99 % in 156±2 of 192 directions, mean over blocks
# keys before rotation: 99 % in 78±2 of 192 directions, mean over blocks
# ```
# ```output smollm2 sotu1898
# there and back: max difference <1e-4
# keys as cached: 99 % in 129±2 of 192 directions, mean over blocks
# values: 99 % in 157±2 of 192 directions, mean over blocks
# keys before rotation: 99 % in 79±2 of 192 directions, mean over blocks
# ```
# ```output gpt2
# there and back: max difference 0.0e+00
# keys as cached: ~…
# values: ~…
# keys before rotation: ~…
# ```

# %%
d2l.plot(range(L), list(counts.values()), legend=[*counts], xlabel='block',
         ylabel='directions with 99 %', ylim=(0, 0.8 * w), figsize=(4.5, 3))

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# ```

# %% [markdown]
# In every block the keys were simpler before they were rotated. What is left
# of a key without its position is its *content*. Does the loss see that it is
# simpler? The same ranks once more, but now the keys are turned back before
# they are squeezed, and rotated again after.

# %%
def lowrank_content(r):
    """An attn_fn: rank r for keys before rotation and values."""
    def attn_fn(q, k, v, i):
        M = squeeze(rows(turn_back(k), v), r).unflatten(-1, (-1, hd))
        k, v = M.transpose(1, 2).chunk(2, dim=1)
        return stock_attention(q, turn(k), v)
    return attn_fn

# %%
before = {r: tail_loss(forward_blocks(model, X, lowrank_content(r)))
          for r in ranks}
for r, loss in before.items():
    print(f'rank {r}: {loss - full:z.2f} with keys before rotation, '
          f'{losses[r] - full:z.2f} as cached')
d2l.plot([r / w for r in (w, *ranks)],
         [[full, *curve.values()] for curve in (losses, before)]
         + [[full] * (1 + len(ranks))],
         legend=['keys as cached', 'keys before rotation', 'full attention'],
         xlabel='share of the directions', ylabel='loss (nats per token)',
         fmts=('-o', '--s', ':'), figsize=(4.5, 3))

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# rank 256: 0.04±0.02 with keys before rotation, 0.10±0.02 as cached
# rank 192: 0.08±0.02 with keys before rotation, 0.19±0.02 as cached
# rank 128: 0.14±0.02 with keys before rotation, 0.51±0.02 as cached
# [figure]
# ```
# ```output smollm2 sotu1898
# rank 256: 0.05±0.02 with keys before rotation, 0.25±0.02 as cached
# rank 192: 0.16±0.02 with keys before rotation, 0.50±0.02 as cached
# rank 128: 0.41±0.02 with keys before rotation, 0.70±0.02 as cached
# [figure]
# ```
# ```output gpt2 timemachine
# rank 256: -0.09±0.02 with keys before rotation, -0.09±0.02 as cached
# rank 128: 0.08±0.02 with keys before rotation, 0.08±0.02 as cached
# [figure]
# ```
# ```output gpt2 sotu1898
# rank 256: ~…
# rank 128: ~…
# [figure]
# ```

# %% [markdown]
# With the rotation out of the way, a third of the directions costs 0.14 nats
# in place of 0.51 on the novel, and 0.41 in place of 0.70 on the address. So
# a good part of the rank of SmolLM2's cache is not content but position.
# (GPT-2 adds learned positions to its input and rotates nothing; there both
# rows are the same.)

# %% [markdown]
# ## One Passage Is One Passage
#
# All losses so far are means over 511 tokens of one text. The next passage of
# the same text shows how far such a number carries.

# %%
r = ranks[-1]
for number in range(1, 1 + sizes['more']):
    other = passage(number)
    stock, squeezed = (
        tail_loss(forward_blocks(model, other, attn_fn), other)
        for attn_fn in (stock_attention, lowrank_kv(r)))
    print(f'passage {number}: full {stock:.2f}, rank {r} adds '
          f'{squeezed - stock:z.2f}')

# %% [markdown] tags=["expected"]
# ```output small smollm2 timemachine
# passage 1: full 2.79±0.02, rank 128 adds 0.42±0.02
# ```
# ```output small smollm2 sotu1898
# passage 1: full 3.60±0.02, rank 128 adds 0.61±0.02
# ```
# ```output small gpt2
# passage 1: ~…
# ```
# ```output full smollm2 timemachine
# passage 1: full 2.79±0.02, rank 128 adds 0.42±0.02
# passage 2: full 3.03±0.02, rank 128 adds 0.46±0.02
# passage 3: full 2.74±0.02, rank 128 adds 0.31±0.02
# passage 4: full 3.20±0.02, rank 128 adds 0.61±0.02
# passage 5: full 3.56±0.02, rank 128 adds 0.50±0.02
# passage 6: full 3.23±0.02, rank 128 adds 0.38±0.02
# passage 7: full 3.66±0.02, rank 128 adds 0.39±0.02
# ```
# ```output full smollm2 sotu1898
# passage 1: full 3.60±0.02, rank 128 adds 0.61±0.02
# passage 2: full 2.92±0.02, rank 128 adds 0.62±0.02
# passage 3: full 3.02±0.02, rank 128 adds 0.43±0.02
# passage 4: full 3.29±0.02, rank 128 adds 0.62±0.02
# passage 5: full 3.24±0.02, rank 128 adds 0.57±0.02
# passage 6: full 3.44±0.02, rank 128 adds 0.70±0.02
# passage 7: full 3.28±0.02, rank 128 adds 0.42±0.02
# ```
# ```output full gpt2
# passage 1: ~…
# passage 2: ~…
# passage 3: ~…
# passage 4: ~…
# passage 5: ~…
# passage 6: ~…
# passage 7: ~…
# ```

# %% [markdown]
# The loss itself belongs to the passage: over eight passages of the novel (in
# `full`; `small` shows two) it goes from 2.74 to 3.66. What the rank adds
# goes from 0.31 to 0.61. About half a nat, then, and not even the first digit
# is firm: a ranking of methods that differ by a few hundredths would need many
# passages. Nor does one kind of text say much about another: neither a novel
# nor a president's address has code or tables in it. And a loss per token
# says little about the one token, far back, that a later answer hangs on.

# %% [markdown]
# ## What MLA Adds
#
# This is the problem that MLA solves by design. Its latent holds what keys
# and values of all heads have in common, *without* rotation. Positions travel
# in a separate, short part of the key, rotated, one for all heads. Three
# things differ from what we did here.
#
# 1. The projections are learned along with the model, not fitted to a
#    passage: no oracle, and the model arranges itself with them.
# 2. The two matrices that make keys and values from a latent need not be
#    applied to cached tokens at all. They are absorbed into the projections
#    of query and output, which is left as an exercise, and would fail if a
#    rotation stood between.
# 3. What is cached is the latent and the rotary part, nothing per head.

# %%
deepseek = d2l.MODELS['DeepSeek-V2']
latent = deepseek.latent_dim + deepseek.rotary_dim
unshared = 2 * deepseek.num_heads * deepseek.head_dim
print(f'DeepSeek-V2: {latent} numbers per token and block, '
      f'without sharing {unshared}')
print(f'{name}: {w} numbers per token and block, '
      f'without sharing {2 * H * hd}')

# %% [markdown] tags=["expected"]
# ```output smollm2
# DeepSeek-V2: 576 numbers per token and block, without sharing 32768
# smollm2: 384 numbers per token and block, without sharing 1152
# ```
# ```output gpt2
# DeepSeek-V2: 576 numbers per token and block, without sharing 32768
# gpt2: 1536 numbers per token and block, without sharing 1536
# ```

# %% [markdown]
# ### Exercise: Attention from Latents Alone
#
# *[paper], [code], about 60 minutes.*
#
# DeepSeek-V2 has 128 query heads of width $d_h = 128$ and no sharing, and its
# cache is smaller than that of eight shared heads. For a head $h$ and a cached
# token $j$ with latent $c_j \in \mathbb{R}^r$ the key is $c_j U_K$ and the
# value $c_j U_V$, where both matrices belong to the head.
#
# 1. Write `absorbed(q, c, U_K, U_V)`: one query for each head, the latents of
#    all cached tokens, matrices of shape $(H, r, d_h)$. It returns the scaled
#    scores, as they go into the softmax, and the outputs of the heads. No key
#    and no value may be formed on the way, of no head. The check compares with
#    attention that forms them, on random matrices, and looks at the shapes of
#    all that arises.
# 2. If keys were rotated after they are made, this would fail: why? How many
#    vectors as wide as a latent would a head have to make from its query, in
#    one step with 1000 cached tokens (the current one among them, all at
#    different positions), and how many if position has a part of its own,
#    outside the latent? Then write `absorbed_rotary`, where each head's query
#    has a second part `q_R`, already rotated, which meets a rotary key `k_R`
#    that all heads share. A score is now the product of two longer vectors,
#    scaled by the root of $d_h + d_R$.
# 3. For DeepSeek-V2 ($H = 128$, $d_h = 128$, $r = 512$, $d_R = 64$), per layer
#    and cached token: how many numbers are cached, how many FLOPs do scores
#    and weighted sum take in a decode step, with plain multi-head attention
#    (MHA) and with MLA, folded as above? With how many key-value heads of
#    width $d_h$ would a grouped model cache as much as MLA does? And how many
#    FLOPs are there for each cached number? (Softmax, and what is done once
#    per step and not for each cached token, does not count.) What does the
#    last pair say about a decode step?

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# Write one score with all its factors: a row vector, a matrix, a column
# vector. Products may be bracketed in two ways. Which of them has no key of a
# cached token in it? The output is a weighted sum of products that all share
# one factor.
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# Put a rotation for each position into the same product. It stands between the
# two matrices that you folded, and depends on the distance between query and
# token. Then see what a second, short product adds to the score, if the
# vectors of both are laid end to end.
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# For the FLOPs of one head and one cached token count the numbers that are
# multiplied in a score, then those in the weighted sum. In the folded step a
# head is as wide as what it reads. A multiplication and its addition are two.
#
# </details>

# %% exercise="absorbed"
# H heads, d head width, r latent width, R rotary width, S cached tokens
def absorbed(q, c, U_K, U_V):
    """Scores (H, S) and outputs (H, d).

    q: (H, d); c: (S, r); U_K, U_V: (H, r, d), a key is c[j] @ U_K[h].
    """
    ...

def absorbed_rotary(q, q_R, c, k_R, U_K, U_V):
    """The same with a rotary part: q_R (H, R), k_R (S, R) for all heads."""
    ...

queries = {'rotated': ..., 'separate': ...}
elements = {'MHA': ..., 'MLA': ...}
flops = {'MHA': ..., 'MLA': ...}
heads_to_match = ...
per_element = {'MHA': ..., 'MLA': ...}       # FLOPs per cached number

# %%
d2l.attempt('absorbed', latent=d2l.try_latents(absorbed),
            rotary=d2l.try_latents(absorbed_rotary), queries=queries,
            elements=elements, flops=flops, heads=heads_to_match,
            per_element=per_element)

# %% [markdown] tags=["expected"]
# ```output
# absorbed: not attempted
# ```

# %% [markdown]
# ### Exercise: Directions Fixed Beforehand
#
# *[code], about 30 minutes.*
#
# An oracle knows the passage that it is scored on. How much of what it
# promises can directions have that were fixed before?
#
# 1. Write `basis(fit, r)`: the $r$ directions that carry most of the rows of a
#    matrix, as orthonormal columns; and `project(M, V)`: the rows of another
#    matrix, each replaced by the nearest point in the span of these columns.
# 2. Fit a basis for each block to the keys and values that the unchanged model
#    makes of `passage(1)`, the 1024 tokens *after* the ones that are scored.
#    Then let the model read `passage(0)`, its keys and values projected on
#    them in every block, and take the `tail_loss` for each of the lesson's
#    ranks. (For GPT-2, try 512 as well: add it to `ranks`, and run the oracle
#    again.)
#
# Compare with the oracle, and with what the projection of DeepSeek-V2 has that
# this one has not. The check tries both functions on small matrices; your
# losses are held to their form and to the lesson's, for no two machines need
# agree on every digit.

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# Of the three factors of a singular value decomposition one has a row for each
# token, one says how much, and one has the directions. Only the last can be
# taken to another passage.
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# Projecting takes two products: one gives coordinates, the other makes rows of
# them again. The first is what would be cached.
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# Let the model read the passage after this one with an attn_fn that keeps
# `rows(k, v)` of each block. A second attn_fn, for the passage that is scored,
# picks the directions of its block `i`.
#
# </details>

# %% exercise="fixed-basis"
# N rows to fit, T rows to project, w numbers in a row
def basis(fit, r):
    """Orthonormal columns V (w, r), fitted to the rows of fit (N, w)."""
    ...

def project(M, V):
    """The rows of M (T, w) or (B, T, w), projected: the same shape."""
    ...

fixed = {r: ... for r in ranks}              # losses

# %%
d2l.attempt('fixed-basis', basis=d2l.try_arrays(basis),
            project=d2l.try_arrays(project),
            loss={'full': full, 'oracle': losses, 'fixed': fixed})

# %% [markdown] tags=["expected"]
# ```output
# fixed-basis: not attempted
# ```
