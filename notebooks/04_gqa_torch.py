# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Sharing Keys and Values
#
# The size of the cache has five factors. Depth, width and precision are
# decided by how good a model should be, context and batch by its users. One
# factor is left: the number of heads that have keys and values of their own.
# Need every query head have its own?
#
# In *multi-head attention* (MHA) it does. In *multi-query attention* (MQA;
# Shazeer, 2019) all query heads read one key-value head. *Grouped-query
# attention* (GQA; Ainslie et al., 2023) is all that lies between: groups of
# query heads share one. In this lesson we build it, count what it saves,
# train models to see what it costs, and check that the saving is one in time
# as well.
#
# ![Eight query heads and the key-value heads that they read. In multi-head
# attention each has its own. In grouped-query attention heads 0 to 3 read the
# first and 4 to 7 the second of two. In multi-query attention all eight read
# the same one.](img/gqa-groups.svg)

# %%
import contextlib
import io
import json
from pathlib import Path

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
# width, blocks: of the models that we train; batch, tokens, steps, rate,
# evals, seeds: how we train them; windows: for validation; cached,
# sequences: when we decode
sizes = {
    'small': dict(width=128, blocks=2, batch=8, tokens=64, steps=400,
                  rate=3e-3, evals=4, seeds=(0,), windows=512, cached=4096,
                  sequences=4),
    'full': dict(width=256, blocks=6, batch=64, tokens=128, steps=600,
                 rate=1e-3, evals=6, seeds=(0, 1, 2), windows=3000,
                 cached=16384, sequences=8),
}[run.profile]

# %% [markdown]
# ## Which Head Reads What
#
# Heads are grouped in order: with $H$ query heads and $H_{kv}$ key-value
# heads, query head $h$ reads key-value head $\lfloor h / (H / H_{kv})
# \rfloor$. So $W_q$ and $W_o$ stay as they are, and $W_k$ and $W_v$ become
# narrower.
#
# What must not happen is that the shared keys are copied out, one copy for
# each query head. The scores would be right, but the memory traffic would be
# that of all heads again. So the heads of a group stand side by side and meet
# their common keys in one product.

# %% [markdown] tags=["backend-only"] why="jax.nn groups by itself"
# `scaled_dot_product_attention` does so with `enable_gqa`. Where we need a
# mask of our own we do it by hand: the $r$ query heads of a group are laid
# one below the other, as $r T$ queries of a single head.

# %%
# B batch, T queries, S keys, H query heads, G key-value heads, hd head width
class GQAAttention(nn.Module):  #@save
    """Attention whose query heads share keys and values in groups.

    queries: (B, T, D), keys and values: (B, S, D), valid_lens: (B,) or (B, T)
    numbers of keys; returns (B, T, D). causal: query i sees j <= i + S - T.
    ValueError for heads that do not divide evenly.
    """

    def __init__(self, num_hiddens, num_heads, num_kv_heads, bias=False,
                 rope=False, causal=True, base=10000):
        super().__init__()
        d2l.check_kv_heads(num_hiddens, num_heads, num_kv_heads, rope)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.rope, self.causal, self.base = rope, causal, base
        width = num_hiddens // num_heads * num_kv_heads
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, width, bias=bias)
        self.W_v = nn.Linear(num_hiddens, width, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def project(self, queries, keys, values, offset=0):
        """q (B, H, T, hd), k and v (B, G, S, hd); keys start at offset."""
        q = self.W_q(queries).unflatten(-1, (self.num_heads, -1))
        k, v = (W(X).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2)
                for W, X in ((self.W_k, keys), (self.W_v, values)))
        q = q.transpose(1, 2)
        if self.rope:
            last = k.shape[2] - q.shape[2]  # queries are the latest tokens
            q = d2l.rope(q, offset + last, self.base)
            k = d2l.rope(k, offset, self.base)
        return q, k, v

    def forward(self, queries, keys, values, valid_lens=None):
        q, k, v = self.project(queries, keys, values)
        (B, H, T, hd), (_, G, S, _) = q.shape, k.shape
        if valid_lens is None and (T == S or not self.causal):
            Y = F.scaled_dot_product_attention(
                q, k, v, is_causal=self.causal, enable_gqa=True)
        else:  # 0 where a row sees nothing, whatever a kernel gives
            mask = d2l.attention_mask(T, S, valid_lens, self.causal, q.device)
            mask = torch.cat([mask] * (H // G), dim=-2)      # (.., H/G * T, S)
            q = q.reshape(B, G, H // G * T, hd)
            Y = d2l.attention_weights(q, k, mask) @ v
        return self.W_o(Y.reshape(B, H, T, hd).transpose(1, 2).flatten(2))

# %% [markdown]
# Two checks. With as many key-value heads as query heads nothing is shared,
# and the result must be that of `MultiHeadAttention` with the same weights.
# And with fewer, it must be that of a loop which gives each query head the
# keys and values of its group. Six query heads and two key-value heads, so
# that a wrong order would show.

# %%
torch.manual_seed(0)
X = torch.randn(2, 7, 48, device=device)
mha = d2l.MultiHeadAttention(48, 6, dropout=0).to(device)
same = GQAAttention(48, 6, 6, causal=False).to(device)
d2l.set_weights(same, d2l.get_weights(mha))

@torch.inference_mode()
def one_head_after_another(gqa, X):
    """The definition, as a loop over query heads."""
    q, k, v = gqa.project(X, X, X)
    heads = []
    for h in range(gqa.num_heads):
        g = h // (gqa.num_heads // gqa.num_kv_heads)
        heads.append(d2l.attention_weights(q[:, h], k[:, g]) @ v[:, g])
    return gqa.W_o(torch.cat(heads, dim=-1))

gqa = GQAAttention(48, 6, 2, causal=False).to(device)
pairs = {'6 of 6 heads, against MHA': (same(X, X, X), mha(X, X, X)),
         '2 of 6 heads, against a loop': (gqa(X, X, X),
                                          one_head_after_another(gqa, X))}
for name, (Y, expected) in pairs.items():
    print(f'{name}: max difference {(Y - expected).abs().max():.1e}')

# %% [markdown] tags=["expected"]
# ```output
# 6 of 6 heads, against MHA: max difference <1e-5
# 2 of 6 heads, against a loop: max difference <1e-5
# ```

# %% [markdown]
# ## What It Saves
#
# A layer of width 256 with eight query heads: parameters, and bytes in the
# cache per token in 32 bits.

# %%
for G in (8, 4, 2, 1):
    gqa = GQAAttention(256, 8, G)
    num_params = sum(p.numel() for p in gqa.parameters())
    print(f'H_kv={G}: {num_params} parameters, '
          f'{d2l.cache_bytes(1, G, 256 // 8, n=1)} bytes per token')

# %% [markdown] tags=["expected"]
# ```output
# H_kv=8: 262144 parameters, 2048 bytes per token
# H_kv=4: 196608 parameters, 1024 bytes per token
# H_kv=2: 163840 parameters, 512 bytes per token
# H_kv=1: 147456 parameters, 256 bytes per token
# ```

# %% [markdown]
# The cache shrinks by the factor of sharing, the parameters by much less:
# $W_q$ and $W_o$ stay, and so does the feed-forward network, which is not in
# this count. A shared head is also *less to learn with*, so the fair question
# is what the loss does.
#
# ## What It Costs
#
# We train the same model four times on the run's text, character by
# character, with 8, 4, 2 and 1 key-value heads. All see the same batches in
# the same order, and the PyTorch and the JAX notebook do, too. The blocks of
# a built `GPT` get their new attention by assignment.

# %%
data = d2l.TimeMachine(sizes['batch'], sizes['tokens'], num_train=100000,
                       num_val=sizes['windows'], tokenization='char')

def build(num_kv_heads, seed=0):
    """A new model with that many key-value heads per block."""
    torch.manual_seed(seed)
    lm = d2l.GPT(len(data.vocab), sizes['width'], 8, sizes['blocks'])
    for blk in lm.blks:
        blk.attention = GQAAttention(sizes['width'], 8, num_kv_heads,
                                     rope=True)
    return lm.to(device)

def train(lm, steps, eval_every=0):
    """The losses of all steps, with validation losses on the way."""
    optimizer = torch.optim.AdamW(lm.parameters(), lr=sizes['rate'],
                                  weight_decay=0)
    return d2l.train_lm(lm, data, optimizer, steps, eval_every)

# %%
kv_heads = (8, 4, 2, 1)
schedule = sizes['steps'], sizes['steps'] // sizes['evals']
with contextlib.redirect_stdout(io.StringIO()):  # a line per evaluation
    losses = {G: [train(build(G, seed), *schedule)
                  for seed in sizes['seeds']] for G in kv_heads}

# %%
best = {G: [min(loss for _, loss in curve.evaluations) for curve in losses[G]]
        for G in kv_heads}
kib = {G: d2l.cache_bytes(sizes['blocks'], G, sizes['width'] // 8, n=1) / 1024
       for G in kv_heads}
for G in kv_heads:
    mean = sum(best[G]) / len(best[G])
    print(f'H_kv={G}: best validation loss {mean:.2f}, '
          f'cache {kib[G]:.2f} KiB per token')

# %% [markdown] tags=["expected"]
# ```output small timemachine
# H_kv=8: best validation loss 1.78±0.1, cache 2.00 KiB per token
# H_kv=4: best validation loss 1.85±0.1, cache 1.00 KiB per token
# H_kv=2: best validation loss 1.90±0.1, cache 0.50 KiB per token
# H_kv=1: best validation loss 1.89±0.1, cache 0.25 KiB per token
# ```
# ```output small sotu1898
# H_kv=8: best validation loss 1.68±0.1, cache 2.00 KiB per token
# H_kv=4: best validation loss 1.68±0.1, cache 1.00 KiB per token
# H_kv=2: best validation loss 1.66±0.1, cache 0.50 KiB per token
# H_kv=1: best validation loss 1.70±0.1, cache 0.25 KiB per token
# ```
#
# The losses of `full` are the book's; no run of ours has confirmed them yet.
#
# ```output full
# H_kv=8: best validation loss 1.53±0.1, cache 12.00 KiB per token
# H_kv=4: best validation loss 1.53±0.1, cache 6.00 KiB per token
# H_kv=2: best validation loss 1.50±0.1, cache 3.00 KiB per token
# H_kv=1: best validation loss 1.51±0.1, cache 1.50 KiB per token
# ```

# %% [markdown]
# The cache shrinks eightfold; the loss moves by about a tenth of a nat at
# most. A plot with the cache on a logarithmic axis says it at a glance: the
# loss is nearly flat.

# %%
lines = [[sum(best[G]) / len(best[G]) for G in kv_heads]]
legend = ['best validation loss']
if len(sizes['seeds']) > 1:
    lines += [[pick(best[G]) for G in kv_heads] for pick in (min, max)]
    legend = ['mean over seeds', 'lowest', 'highest']
d2l.plot([kib[G] for G in kv_heads], lines, legend=legend, xscale='log',
         xlabel='cache (KiB per token)', ylabel='loss (nats per character)',
         ylim=(min(lines[0]) - 0.2, max(lines[0]) + 0.2))

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# ```

# %% [markdown]
# How much may we read into such a table? Each row is one training with one
# draw of the initial weights (three in `full`). In `small` we have four runs,
# two texts and two frameworks. The other framework, whose weights begin
# otherwise, moves a row by 0.01 to 0.10; one head ends between 0.03 ahead of
# eight and 0.11 behind. Another passage to validate on would move a row, too:
# the windows of `small` overlap and cover less than six hundred characters.
# So the table shows that sharing does *not* cost much here: a fifth of a nat
# would stand out. It cannot show which row is the best, nor that sharing is
# free: the trainings are short, the models are tiny, and nothing in the text
# has to be remembered over thousands of tokens. For large models the published
# comparisons (Ainslie et al., 2023) find GQA close to MHA and MQA a little
# behind.
#
# The figures of the book, 1.53, 1.53, 1.50, 1.51 in PyTorch and 1.52, 1.52,
# 1.55, 1.50 in JAX for 8, 4, 2 and 1 heads, go up and down in the same way,
# from a larger model.
#
# Two trainings can be compared much more closely when they see the same data.
# The batches depend only on the seed of the text, in PyTorch and in JAX
# alike. This cell keeps its curve for eight heads in a file, and if the other
# notebook has left one, from a run with the same labels, draws both.

# %%
def smooth(losses, n=20):
    """Means over n steps, one for each step from the n-th on."""
    return [sum(losses[i:i + n]) / n for i in range(len(losses) - n + 1)]

here, there = Path('04_gqa_torch.json'), Path('04_gqa_jax.json')
here.write_text(json.dumps({'run': str(run), 'losses': losses[8][0]}))
curves = {'PyTorch': losses[8][0]}
if there.exists():
    other = json.loads(there.read_text())
    if other['run'] == str(run):
        curves['JAX'] = other['losses']
d2l.plot([smooth(curve) for curve in curves.values()], legend=[*curves],
         xlabel='step', ylabel='loss (nats per character)', fmts=('-', '--'))

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# ```

# %% [markdown]
# The ups and downs are those of the batches; the distance between the curves
# is what another framework and other initial weights do.
#
# ## Does It Pay When Decoding?
#
# A smaller cache is less to keep. It is also less to read, but only if a step
# reads the shared heads and nothing else. The package's `GQAAttention` has a
# cached step that does (how it is written is left to the reader), and as the
# bad example we write the one that repeats the keys and values for all query
# heads first. Both give the same answer. One layer of width 512 with eight
# query heads, on a long cache:

# %%
B, S, D, H = sizes['sequences'], sizes['cached'], 512, 8

@torch.inference_mode()
def step_seconds(G):
    """Seconds of a step on S cached tokens: (shared heads, repeated ones)."""
    attention = d2l.GQAAttention(D, H, G, rope=True).to(device)
    X = torch.randn(B, 1, D, device=device)
    rows = {name: torch.randn(B, G, S, D // H, device=device)
            for name in 'kv'}

    def shared():
        return attention.forward_step(X, dict(rows))

    def repeated():
        q, k, v = attention.project(X, X, X, offset=S)
        k, v = (torch.cat([rows[name], new], dim=2).repeat_interleave(
            H // G, dim=1) for name, new in (('k', k), ('v', v)))
        Y = F.scaled_dot_product_attention(q, k, v)          # (B, H, 1, hd)
        return attention.W_o(Y.transpose(1, 2).flatten(2))

    error = (shared() - repeated()).abs().max()
    assert error < 1e-4, f'shared and repeated differ by {error:.1e}'
    return d2l.timeit(shared, 5), d2l.timeit(repeated, 5)

# %%
steps = {G: step_seconds(G) for G in kv_heads}
for G, (shared_s, repeated_s) in steps.items():
    size = d2l.format_bytes(d2l.cache_bytes(1, G, D // H, S, B))
    print(f'H_kv={G}: cache {size}, step {1e3 * shared_s:.1f} ms, '
          f'with repeated heads {1e3 * repeated_s:.1f} ms')
assert 2 * steps[1][0] < steps[8][0], f'1 and 8 heads: {steps[1]}, {steps[8]}'
assert steps[1][0] < steps[1][1], f'shared, repeated: {steps[1]}'
d2l.plot([d2l.cache_bytes(1, G, D // H, S, B) / 2**20 for G in kv_heads],
         [[1e3 * steps[G][i] for G in kv_heads] for i in (0, 1)],
         xlabel='cache (MiB)', ylabel='time per step (ms)',
         legend=['shared heads', 'repeated heads'])

# %% [markdown] tags=["expected"]
# ```output small
# H_kv=8: cache 64.0 MiB, step ~54 ms, with repeated heads ~96 ms
# H_kv=4: cache 32.0 MiB, step ~24 ms, with repeated heads ~58 ms
# H_kv=2: cache 16.0 MiB, step ~7 ms, with repeated heads ~50 ms
# H_kv=1: cache 8.0 MiB, step ~4 ms, with repeated heads ~48 ms
# [figure]
# ```
#
# No run of ours has measured a GPU here; its times are placeholders.
#
# ```output full
# H_kv=8: cache 512.0 MiB, step ~0 ms, with repeated heads ~0 ms
# H_kv=4: cache 256.0 MiB, step ~0 ms, with repeated heads ~0 ms
# H_kv=2: cache 128.0 MiB, step ~0 ms, with repeated heads ~0 ms
# H_kv=1: cache 64.0 MiB, step ~0 ms, with repeated heads ~0 ms
# [figure]
# ```

# %% [markdown]
# With shared heads the step follows the cache: an eighth of the bytes takes a
# fraction of the time. With repeated heads it falls far less: whatever the
# cache holds, eight heads are written out and read again. The bytes that are
# *kept* are the same in both columns; what decides the time is what is
# *moved*.

# %% [markdown] tags=["backend-only"] why="a JAX cache does not grow"
# Our cache still grows by `cat`, which also copies only the shared heads, so
# both costs fall together.

# %% [markdown]
# ### Exercise: A Cached Step with Shared Heads
#
# *[code], about 40 minutes.*
#
# The cached step of `GQAAttention` was left to the reader. Write it for one
# layer, without its `forward_step`: new tokens come in, the cache grows by
# their keys and values, and the new tokens attend to all of it.
#
# * The layer has rotary positions, and positions go on where the cache ends.
# * A chunk of several tokens may meet a cache that holds something. Any split
#   of a text has to give what one pass gives.
# * The cache holds $H_{kv}$ heads. At no point may keys or values be copied
#   out to all $H$ query heads.
#
# Then let it serve a model, `GPT(97, 128, 4, 3, num_kv_heads=2)`: 48 tokens,
# 16 of them as a prompt, the rest one by one. How far are its logits from
# those of one pass?
#
# The check runs the step on layers of several sizes, in chunks, and compares
# outputs and the shape of the cache after each. In JAX that compiles a few
# times and takes some seconds.

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# The layer has a method `project(queries, keys, values, offset)` that returns
# queries, keys and values with their own numbers of heads, rotated from a
# position on. Which position is that of the first new token, and where can
# the step read it off?
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# First extend the cache, then attend to all of it. Of the new tokens number i
# may see all that was cached, and the new ones up to itself: the offset mask
# of the lesson on the cache.
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# The heads of a group are neighbours. Lay their queries one below the other,
# as the queries of a single head, or let the framework's attention group
# them; in both cases the mask is that of one head.
#
# </details>

# %% exercise="cached-gqa"
# B batch, T new tokens, S cached tokens, G key-value heads, hd head width
def gqa_step(attention, X, cache):
    """Y (B, T, D) for new tokens X (B, T, D).

    cache: a dict, empty at first; afterwards it holds `k` and `v`, each
    (B, G, S + T, hd).
    """
    ...

difference = ...                             # the largest, of all logits

# %%
d2l.attempt('cached-gqa', step=d2l.try_step(gqa_step),
            difference=difference)

# %% [markdown] tags=["expected"]
# ```output
# cached-gqa: not attempted
# ```

# %% [markdown]
# ### Exercise: Taking Heads Away Afterwards
#
# *[code], [extended], about 45 minutes.*
#
# A model that has learnt with eight key-value heads is to get along with two.
# Query heads 0 to 3 will share one, and 4 to 7 the other. Two proposals for
# the shared head: the mean of the four that it replaces, and simply the first
# of them. What does either cost, and how much of it does a little training
# bring back (Ainslie et al., 2023, call it *uptraining*)?
#
# 1. Write both conversions. They take a model's weights as
#    `d2l.get_weights` returns them (NumPy arrays by name, a linear map as
#    (out, in), the same in both notebooks), the width of a head, and the
#    number of key-value heads that is asked for. They return such a dict for
#    the smaller model. Names are as in `blks.0.attention.W_k.weight`; there
#    may be biases.
# 2. Train the lesson's model with $H_{kv} = 8$ for 300 steps. Convert it both
#    ways to $H_{kv} = 2$. Validation losses of the parent and of both
#    converted models, none of which has taken a step since?
# 3. Train the one with pooled heads for 15 steps more, and a new model with
#    $H_{kv} = 2$ for 315 steps from scratch. Their losses?
#
# The check runs the conversions on weights of several sizes. Of the losses it
# looks only at what must hold between them. On two cores the trainings take
# about half a minute in the sizes of `small`.

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# Give `W_k` a shape in which its heads can be seen: `hd` rows for each, and
# the rows stand in the order of the heads. Then give the heads a shape in
# which the groups can be seen.
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# Of all names in the dict only those of `W_k` and `W_v` change, weights and,
# where there are any, biases; a bias has the rows of its weight and no
# columns. All other arrays pass through.
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# Losses: `d2l.get_weights(parent)` is taken once, after 300 steps. Each
# converted model is a new one with two heads that gets weights by
# `d2l.set_weights`, is measured, and only then gets an optimizer of its own.
#
# </details>

# %% exercise="uptraining"
# weights: {name: array}; hd: head width; G: key-value heads of the new model
def pool_heads(weights, hd, G):
    """Weights of a model with G key-value heads, means of groups."""
    ...

def pick_heads(weights, hd, G):
    """Weights of a model with G key-value heads, the first of groups."""
    ...

# validation losses in nats per character
before = {'parent': ..., 'mean': ..., 'first': ...}
after = {'mean': ..., 'scratch': ...}

# %%
d2l.attempt('uptraining', pool=pool_heads, pick=pick_heads, before=before,
            after=after)

# %% [markdown] tags=["expected"]
# ```output
# uptraining: not attempted
# ```

# %% [markdown]
# ## What This Shows, and What It Does Not
#
# * Sharing keys and values divides the cache by the size of the groups,
#   exactly, and leaves most parameters alone.
# * At the size of our models the loss does not tell 8 heads from 1. That is
#   the absence of a large effect, in one setting, and no more.
# * The time of a decode step falls with the bytes, if the shared heads are
#   read where they lie. A repeated copy gives the same numbers and none of
#   the speed.
# * The choice is made before training: a model that has learnt with eight
#   heads does not work with two. Turning one into the other is possible with
#   a little more training (Ainslie et al., 2023); the last exercise tries.
# * Sharing is one way to store less per token. The next lesson looks for
#   redundancy inside the keys and values themselves.
