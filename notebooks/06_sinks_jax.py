# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Windows and Sinks
#
# So far every token left something in the cache, however small. A *sliding
# window* breaks with that: only the latest $w$ tokens stay, and the cache
# stops growing. Models that were trained so do well, such as Mistral 7B
# (Jiang et al., 2023). What of a model that always saw everything? One would
# expect it to lose what only far tokens could tell, which is little in most
# texts.
#
# What happens is stranger. Xiao et al. described it and gave it a name
# (*Efficient Streaming Language Models with Attention Sinks*, 2024). In this
# lesson we look at where the attention of a pretrained model goes, take
# tokens away from it, and then set all methods of these lessons side by side.

# %%
import math

import jax
import jax.numpy as jnp

from d2l_ext import jax as d2l

run = d2l.current_run()
jax.config.update('jax_default_matmul_precision', 'highest')
print(run)

# %% [markdown] tags=["expected"]
# ```output
# run: profile {profile}, text {text}, checkpoint {checkpoint}
# ```

# %%
# tokens: of the passage; tail: losses count from this position on; windows:
# tokens that stay, the current one included
sizes = {
    'small': dict(tokens=1024, tail=512, windows=(64, 256, 512)),
    'full': dict(tokens=1024, tail=512, windows=(32, 64, 128, 256, 512)),
}[run.profile]

# %% [markdown]
# ## Where Attention Goes
#
# Model and passage are those of the lesson on low rank, and so is the way to
# look into the model: `forward_blocks` hands queries, keys and values of block
# `i` to a function `attn_fn(q, k, v, i)` of ours and goes on with what that
# returns. `stock_attention` is what the model does itself. Here we compute the
# attention weights of each block a second time, to look at them, and keep the
# keys and values of a middle block for later. Two numbers per block interest
# us. One is the mean weight that queries from position 64 on give to token 0.
# The other is the norm of the value of token 0, divided by the mean norm of
# the others.
#
# As before, losses and weights of GPT-2 in what is printed are figures of the
# book, on *The Time Machine*. No run of ours confirms them, and where the book
# has none there is a `~…`.

# %%
model, encoding, name = d2l.load_checkpoint()
text_ids = encoding.encode_ordinary(d2l.read_text())
X = jnp.array([text_ids[:sizes['tokens']]])
print(f'{name}, token 0 is {encoding.decode([X[0, 0].item()])!r}')

@jax.jit
def weights(q, k):
    """Causal attention weights (B, H, T, T), shared keys as they are."""
    B, T, H, hd = q.shape
    q = q.reshape(B, T, k.shape[2], -1, hd)                  # (B, T, G, r, hd)
    scores = jnp.einsum('btgrd,bsgd->bgrts', q, k) / hd ** 0.5
    mask = d2l.attention_mask(T, T, causal=True)
    A = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return A.reshape(B, H, T, T)

on_first, value_norms, maps, middle = [], [], [], {}

def watch(q, k, v, i):
    """Stock attention that notes what goes to token 0."""
    A = weights(q, k)[0]                                     # (H, T, T)
    norms = jnp.linalg.norm(v[0], axis=-1)                   # (T, G)
    on_first.append(A[:, 64:, 0].mean().item())
    value_norms.append((norms[0].mean() / norms[1:].mean()).item())
    maps.append(A[:, :48, :48])
    if i == len(model.blks) // 2:
        middle.update(k=k, v=v)
    return d2l.stock_attention(q, k, v)

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# smollm2, token 0 is 'The'
# ```
# ```output smollm2 sotu1898
# smollm2, token 0 is 'To'
# ```
# ```output gpt2 timemachine
# gpt2, token 0 is 'The'
# ```
# ```output gpt2 sotu1898
# gpt2, token 0 is 'To'
# ```

# %%
losses = {'full': d2l.token_losses(
    d2l.forward_blocks(model, X, watch), X)[0]}

def tail(what):
    """Mean loss (nats per token) of what follows the positions from 512."""
    return losses[what][sizes['tail']:].mean().item()

print(f'full attention: loss {tail("full"):.2f}, '
      f'perplexity {math.exp(tail("full")):.0f}')
for i in range(0, len(on_first), 6):
    for what, numbers in (('weight', on_first), ('value', value_norms)):
        print(f'{what:6} {i:2}-{i + 5:2}:',
              *(f'{x:.2f}' for x in numbers[i:i + 6]))

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# full attention: loss 3.09±0.02, perplexity 22±1
# weight  0- 5: 0.00±0.02 0.00±0.02 0.03±0.02 0.13±0.02 0.11±0.02 0.10±0.02
# value   0- 5: 0.87±0.02 0.80±0.02 0.60±0.02 0.17±0.02 0.15±0.02 0.20±0.02
# weight  6-11: 0.10±0.02 0.10±0.02 0.10±0.02 0.10±0.02 0.01±0.02 0.00±0.02
# value   6-11: 0.22±0.02 0.19±0.02 0.23±0.02 0.25±0.02 0.72±0.02 1.30±0.02
# weight 12-17: 0.37±0.02 0.37±0.02 0.46±0.02 0.44±0.02 0.29±0.02 0.50±0.02
# value  12-17: 0.31±0.02 0.28±0.02 0.23±0.02 0.34±0.02 0.33±0.02 0.25±0.02
# weight 18-23: 0.60±0.02 0.39±0.02 0.50±0.02 0.41±0.02 0.47±0.02 0.62±0.02
# value  18-23: 0.17±0.02 0.25±0.02 0.11±0.02 0.22±0.02 0.18±0.02 0.10±0.02
# weight 24-29: 0.54±0.02 0.57±0.02 0.55±0.02 0.41±0.02 0.43±0.02 0.30±0.02
# value  24-29: 0.18±0.02 0.15±0.02 0.13±0.02 0.19±0.02 0.19±0.02 0.44±0.02
# ```
# ```output smollm2 sotu1898
# full attention: loss 3.93±0.02, perplexity 51±1
# weight  0- 5: 0.00±0.02 0.00±0.02 0.02±0.02 0.09±0.02 0.06±0.02 0.06±0.02
# value   0- 5: 1.11±0.02 0.99±0.02 0.75±0.02 0.20±0.02 0.17±0.02 0.21±0.02
# weight  6-11: 0.07±0.02 0.06±0.02 0.07±0.02 0.09±0.02 0.00±0.02 0.00±0.02
# value   6-11: 0.23±0.02 0.20±0.02 0.25±0.02 0.26±0.02 1.12±0.02 1.58±0.02
# weight 12-17: 0.38±0.02 0.35±0.02 0.47±0.02 0.44±0.02 0.29±0.02 0.57±0.02
# value  12-17: 0.30±0.02 0.27±0.02 0.23±0.02 0.34±0.02 0.33±0.02 0.25±0.02
# weight 18-23: 0.62±0.02 0.37±0.02 0.55±0.02 0.44±0.02 0.47±0.02 0.70±0.02
# value  18-23: 0.17±0.02 0.25±0.02 0.12±0.02 0.21±0.02 0.17±0.02 0.11±0.02
# weight 24-29: 0.63±0.02 0.56±0.02 0.59±0.02 0.42±0.02 0.58±0.02 0.31±0.02
# value  24-29: 0.18±0.02 0.15±0.02 0.13±0.02 0.18±0.02 0.19±0.02 0.71±0.02
# ```
# ```output gpt2 timemachine
# full attention: loss 3.58±0.02, perplexity 36±1
# weight  0- 5: 0.00±0.02 0.01±0.02 0.11±0.02 0.30±0.02 0.32±0.02 0.51±0.02
# value   0- 5: ~…
# weight  6-11: 0.46±0.02 0.57±0.02 0.48±0.02 0.48±0.02 0.45±0.02 0.34±0.02
# value   6-11: ~…
# ```
# ```output gpt2 sotu1898
# full attention: ~…
# weight  0- 5: ~…
# value   0- 5: ~…
# weight  6-11: ~…
# value   6-11: ~…
# ```

# %%
d2l.plot(range(len(on_first)), [on_first, value_norms],
         legend=['weight on token 0', 'norm of its value / mean'],
         xlabel='block', ylabel='weight, or ratio of norms', ylim=(0, 2),
         figsize=(4.5, 3))
i = max(range(len(on_first)), key=on_first.__getitem__)
d2l.show_heatmaps([maps[i][:3]], xlabel='key', ylabel='query', titles=[
    f'block {i}, head {h}' for h in range(3)], figsize=(7, 2.6))

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# [figure]
# ```

# %% [markdown]
# In blocks 0 and 1 of SmolLM2 token 0 gets next to nothing, in block 2 two or
# three per cent. Then it gets six to thirteen per cent, where an equal share
# would be 0.3, nothing in blocks 10 and 11, and from block 12 on three to
# seven tenths of all attention. It is one word in a thousand and says next to
# nothing about what comes next. The maps show it as a column on the left: a
# *sink*.
#
# Why would a model learn that? The weights of a head must sum to one. A head
# that has found nothing to add at some position still has to put its weight
# somewhere, and the first token is the one place that every position can see.
# The second curve shows the other half of the arrangement: where the weight
# is large, the value of token 0 is a third to a tenth as long as others (the
# last block apart), so that much weight on it adds little.
#
# Little, or nothing? We can ask, by changing nothing but that value: once to
# zero, and once to the mean length of the others, in every block. Token 0
# itself, which sees nobody else, goes on reading its own value; otherwise it
# would become another token in the blocks above.

# %%
@jax.jit
def with_first_value(q, k, v, factor):
    """Stock attention; others see the value of token 0 times a factor."""
    Y = d2l.stock_attention(q, k, v.at[:, 0].multiply(factor))
    alone = d2l.stock_attention(*(x[:, :1] for x in (q, k, v)))
    return Y.at[:, :1].set(alone)

def value_zero(q, k, v, i):
    return with_first_value(q, k, v, 0)

@jax.jit
def value_long(q, k, v, i):
    norms = jnp.linalg.norm(v, axis=-1, keepdims=True)       # (B, T, G, 1)
    return with_first_value(q, k, v, norms[:, 1:].mean(1) / norms[:, 0])

# %%
def measure(what, attn_fn):
    """Keep the loss of each token with attn_fn; a line on the tail."""
    logits = d2l.forward_blocks(model, X, attn_fn)
    losses[what] = d2l.token_losses(logits, X)[0]
    print(f'{what}: loss {tail(what):.2f}, '
          f'perplexity {math.exp(tail(what)):.0f}')

measure('value of token 0 set to zero', value_zero)
measure('value of token 0 as long as others', value_long)

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# value of token 0 set to zero: loss 3.39±0.02, perplexity 30±1
# value of token 0 as long as others: loss 5.49±0.02, perplexity 243±5
# ```
# ```output smollm2 sotu1898
# value of token 0 set to zero: loss 4.24±0.02, perplexity 70±2
# value of token 0 as long as others: loss 6.52±0.02, perplexity 679±14
# ```
# ```output gpt2
# value of token 0 set to zero: ~…
# value of token 0 as long as others: ~…
# ```

# %% [markdown]
# With a value of ordinary length the loss rises by more than two nats, on the
# novel as on the address: such weights work only because the value is short.
# And a value of zero is not right either. What little the sink adds the model
# has learned to count on, like a constant. So "attend nowhere" is a good
# first picture of a sink, and not the whole of it.

# %% [markdown]
# ### Exercise: Attending Nowhere
#
# *[paper], [code], about 45 minutes.*
#
# Some models, such as gpt-oss (OpenAI, 2025), do not leave the sink to a
# token. Each head has one learned number, a *sink logit* $z$, that stands
# beside the scores in the denominator of the softmax and has no value: $a_j =
# e^{s_j} / (e^z + \sum_i e^{s_i})$.
#
# 1. Write `denominator(scores, V, sink)`, one query of one head with such a
#    sink: the weights of the real tokens, and the output. Then show that
#    nothing new is needed for it: `as_key` returns the same scores and values
#    with one key more, at either end, so that plain attention gives that
#    output. Between which bounds can the sum of the real weights lie? And
#    `sink_for(scores, total)`: the logit with which they sum to `total`.
# 2. How near does token 0 come to that? For one head, with weights `A` and
#    values `V`, write `shares(A, V)`: first the norm of $v_0$ over the mean
#    norm of the other values, second the norm of $\alpha_{t,0}\, v_0$ over
#    that of the head's output, a mean over all queries $t$ from position 64
#    on. Then measure both on the run's passage: for each block the mean over
#    its query heads.
# 3. Let the model read a passage that starts 100 tokens later in the text, and
#    take the mean weight on *its* first token, per block, as the lesson did.
#    What stays, what changes?

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# A logit of its own in the denominator: write the softmax over one more score
# than there are tokens. Which term of the weighted sum must then vanish?
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# The sum of the real weights is a fraction with the same sum above and, with
# one term more, below. Call it p, and solve for the term of the sink.
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# `watch` has all that the second part needs: weights of each query head and
# values of each key-value head. The output of a head is their product; query
# head h reads key-value head h // r. For the third part read the text from its
# token 100 on.
#
# </details>

# %% exercise="sink-noop"
# T tokens, d head width
def denominator(scores, V, sink):
    """Weights (T,) and output (d,) for scores (T,), V (T, d), a number."""
    ...

def as_key(scores, V, sink):
    """Scores (T + 1,) and values (T + 1, d) with one key more."""
    ...

def sink_for(scores, total):
    """The sink with which the weights of these scores sum to total."""
    ...

def shares(A, V):
    """Two numbers, for the weights A (T, T) and values V (T, d) of a head."""
    ...

totals = {'below': ..., 'above': ...}        # lower, upper bound of the sum
ratios = {'value': ..., 'output': ...}       # a list each, one per block
mass = {'from 0': on_first, 'from 100': ...}

# %%
d2l.attempt('sink-noop', denominator=d2l.try_arrays(denominator),
            as_key=d2l.try_arrays(as_key), totals=totals,
            sink_for=d2l.try_arrays(sink_for),
            shares=d2l.try_arrays(shares), ratios=ratios, mass=mass)

# %% [markdown] tags=["expected"]
# ```output
# sink-noop: not attempted
# ```

# %% [markdown]
# ## A Window, and a Window with a Sink
#
# Now we take tokens away. Query $t$ may see key $j$ if $t - j < w$, or if $j
# < s$: the latest $w$ tokens, the current one included, and $s$ sinks.
# Positions stay as they are. That is a mask, not yet a smaller cache, but it
# is exactly what a cache that kept only these rows would compute.

# %%
def window_attention(window, sinks=0, first=0):  #@save
    """An attn_fn: the latest `window` tokens, and `sinks` from first on."""
    d2l.check_sizes(window=window)  # a query sees itself at least
    d2l.check_counts(sinks=sinks, first=first)
    @jax.jit
    def attn_fn(q, k, v, i):
        j = jnp.arange(k.shape[1])
        t = j[-q.shape[1]:, None]
        seen = (t - j < window) | (j >= first) & (j < first + sinks)
        return d2l.attend_by_head(q, k, v, seen & (j <= t))
    return attn_fn

# %%
for sinks in (0, 1, 4):
    measure(f'window 256, sinks {sinks}', window_attention(256, sinks))

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# window 256, sinks 0: loss 3.73±0.02, perplexity 42±1
# window 256, sinks 1: loss 3.15±0.02, perplexity 23±1
# window 256, sinks 4: loss 3.15±0.02, perplexity 23±1
# ```
# ```output smollm2 sotu1898
# window 256, sinks 0: loss 4.68±0.02, perplexity 108±2
# window 256, sinks 1: loss 3.98±0.02, perplexity 54±1
# window 256, sinks 4: loss 3.98±0.02, perplexity 54±1
# ```
# ```output gpt2 timemachine
# window 256, sinks 0: loss 8.25±0.02, perplexity 3840±80
# window 256, sinks 1: loss 3.86±0.02, perplexity 47±1
# window 256, sinks 4: loss 3.76±0.02, perplexity 43±1
# ```
# ```output gpt2 sotu1898
# window 256, sinks 0: ~…
# window 256, sinks 1: ~…
# window 256, sinks 4: ~…
# ```

# %% [markdown]
# What the plain window lost is one token. With token 0 kept, SmolLM2 pays
# about 0.05 nats for a window of 256 tokens, in place of 0.6 to 0.8. Is it
# that token, or would any early one do? As a control we keep four others,
# numbers 8 to 11, beside the window. And we look at how the size of the
# window matters, with and without the sink.

# %%
measure('window 256, tokens 8 to 11', window_attention(256, 4, first=8))
for window in sizes['windows']:
    for sinks in (0, 1):
        if (what := f'window {window}, sinks {sinks}') not in losses:
            measure(what, window_attention(window, sinks))

# %% [markdown] tags=["expected"]
# ```output small smollm2 timemachine
# window 256, tokens 8 to 11: loss 3.73±0.02, perplexity 42±1
# window 64, sinks 0: loss 4.37±0.02, perplexity 79±2
# window 64, sinks 1: loss 3.41±0.02, perplexity 30±1
# window 512, sinks 0: loss 3.69±0.02, perplexity 40±1
# window 512, sinks 1: loss 3.11±0.02, perplexity 22±1
# ```
# ```output small smollm2 sotu1898
# window 256, tokens 8 to 11: loss 4.67±0.02, perplexity 106±2
# window 64, sinks 0: loss 5.11±0.02, perplexity 166±4
# window 64, sinks 1: loss 4.14±0.02, perplexity 63±2
# window 512, sinks 0: loss 4.66±0.02, perplexity 106±2
# window 512, sinks 1: loss 3.95±0.02, perplexity 52±1
# ```
# ```output full smollm2 timemachine
# window 256, tokens 8 to 11: loss 3.73±0.02, perplexity 42±1
# window 32, sinks 0: loss 4.76±0.02, perplexity 116±3
# window 32, sinks 1: loss 3.52±0.02, perplexity 34±1
# window 64, sinks 0: loss 4.37±0.02, perplexity 79±2
# window 64, sinks 1: loss 3.41±0.02, perplexity 30±1
# window 128, sinks 0: loss 3.94±0.02, perplexity 51±1
# window 128, sinks 1: loss 3.31±0.02, perplexity 27±1
# window 512, sinks 0: loss 3.69±0.02, perplexity 40±1
# window 512, sinks 1: loss 3.11±0.02, perplexity 22±1
# ```
# ```output full smollm2 sotu1898
# window 256, tokens 8 to 11: loss 4.67±0.02, perplexity 106±2
# window 32, sinks 0: loss 5.49±0.02, perplexity 242±5
# window 32, sinks 1: loss 4.28±0.02, perplexity 72±2
# window 64, sinks 0: loss 5.11±0.02, perplexity 166±4
# window 64, sinks 1: loss 4.14±0.02, perplexity 63±2
# window 128, sinks 0: loss 4.87±0.02, perplexity 131±3
# window 128, sinks 1: loss 4.05±0.02, perplexity 57±2
# window 512, sinks 0: loss 4.66±0.02, perplexity 106±2
# window 512, sinks 1: loss 3.95±0.02, perplexity 52±1
# ```
# ```output full gpt2
# window 256, tokens 8 to 11: ~…
# window 32, sinks 0: ~…
# window 32, sinks 1: ~…
# window 64, sinks 0: ~…
# window 64, sinks 1: ~…
# window 128, sinks 0: ~…
# window 128, sinks 1: ~…
# window 512, sinks 0: ~…
# window 512, sinks 1: ~…
# ```
# ```output small gpt2
# window 256, tokens 8 to 11: ~…
# window 64, sinks 0: ~…
# window 64, sinks 1: ~…
# window 512, sinks 0: ~…
# window 512, sinks 1: ~…
# ```

# %%
curves = [[math.exp(tail(f'window {window}, sinks {sinks}'))
           for window in sizes['windows']] for sinks in (0, 1)]
d2l.plot(sizes['windows'],
         curves + [[math.exp(tail('full'))] * len(sizes['windows'])],
         legend=['no sink', 'one sink', 'full attention'], xscale='log',
         yscale='log', xlabel='window (tokens)', ylabel='perplexity',
         fmts=('-o', '--s', ':'), figsize=(4.5, 3))

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# ```

# %% [markdown]
# Four other early tokens in its place gain a hundredth of a nat at most: it is
# that token. And sixty-four tokens with it are worth more than five hundred
# without. So what the model loses with a plain window is not far context: it
# is its sink.
#
# If far context were what is missing, the loss would rise slowly as more of
# it is out of reach. If it is the sink, the whole damage comes at once, at
# position 256, where the window no longer reaches back to token 0. We compare
# loss with loss in stretches of 64 tokens.

# %%
def extra(name, first, last):
    """Mean loss beyond full attention at positions first .. last - 1."""
    return (losses[name] - losses['full'])[first:last].mean().item()

for what in ('window 256, sinks 0', 'window 256, sinks 1'):
    print(f'{what}: {extra(what, 0, 256):z.2f} before 256, '
          f'{extra(what, 256, 320):z.2f} up to 319, '
          f'{extra(what, 512, None):z.2f} from 512')
starts = range(0, sizes['tokens'] - 64, 64)
d2l.plot([a + 32 for a in starts],
         [[extra(what, a, a + 64) for a in starts]
          for what in ('window 256, sinks 0', 'window 256, sinks 1')],
         legend=['no sink', 'one sink'], xlabel='middle of the stretch',
         ylabel='loss beyond full attention (nats)', figsize=(4.5, 3))

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# window 256, sinks 0: 0.00 before 256, 0.90±0.02 up to 319, 0.64±0.02 from 512
# window 256, sinks 1: 0.00 before 256, 0.02±0.02 up to 319, 0.06±0.02 from 512
# [figure]
# ```
# ```output smollm2 sotu1898
# window 256, sinks 0: 0.00 before 256, 0.89±0.02 up to 319, 0.75±0.02 from 512
# window 256, sinks 1: 0.00 before 256, 0.02±0.02 up to 319, 0.05±0.02 from 512
# [figure]
# ```
# ```output gpt2 timemachine
# window 256, sinks 0: 0.00 before 256, ~… up to 319, 4.67±0.04 from 512
# window 256, sinks 1: 0.00 before 256, ~… up to 319, 0.28±0.04 from 512
# [figure]
# ```
# ```output gpt2 sotu1898
# window 256, sinks 0: 0.00 before 256, ~…
# window 256, sinks 1: 0.00 before 256, ~…
# [figure]
# ```

# %% [markdown]
# A stretch has 64 predictions, so the curves swing. The whole tail has 511,
# but it is one passage as well. How much of this holds for the next one of the
# same text?

# %%
other = jnp.array([text_ids[sizes['tokens']:2 * sizes['tokens']]])
stock, plain, sunk = (
    d2l.token_losses(d2l.forward_blocks(model, other, attn_fn), other)[
        0, sizes['tail']:].mean().item() for attn_fn in (
        d2l.stock_attention, window_attention(256), window_attention(256, 1)))
print(f'next passage: full {stock:.2f}; window 256 adds {plain - stock:z.2f}, '
      f'with sink {sunk - stock:z.2f}')

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# next passage: full 2.79±0.02; window 256 adds 0.70±0.02, with sink 0.11±0.02
# ```
# ```output smollm2 sotu1898
# next passage: full 3.60±0.02; window 256 adds 0.67±0.02, with sink 0.06±0.02
# ```
# ```output gpt2
# next passage: ~…
# ```

# %% [markdown]
# How much the window costs belongs to the passage, without a sink and with
# one. That a single token is most of it does not.
#
# ## Two Checkpoints, Two Ways to Break
#
# The published figures for GPT-2 are of another kind. Without a sink its loss
# goes from 3.58 to 8.25, a perplexity of 3836 (3842 in JAX); guessing evenly
# among its 50,257 tokens would give a loss of 10.8. It does not degrade, it
# collapses. One sink brings it back to 3.86, four to 3.76. SmolLM2 gives as
# much weight to token 0, but loses 0.6 to 0.8 nats without it, and one sink
# does as well as four.
#
# It is tempting to blame the positions. GPT-2 has a vector for position 0
# that no other token ever has, and a rotation marks no token as the first.
# But Xiao et al. report rotary models of both kinds: without sinks the
# perplexity of Pythia-12B rises to 22, that of Llama-2-7B to more than three
# thousand. So positions alone do not decide it, and two checkpoints that also
# differ in depth, grouping and training data cannot say what does.
#
# Nor does this experiment show that a model can stream forever. Its positions
# stay the original ones, and run out where the model has seen no others. A
# rolling cache has to decide which positions to rotate to, which is left as
# an exercise.

# %% [markdown]
# ### Exercise: A Cache That Rolls
#
# *[code], [extended], about 120 minutes.*
#
# A mask hides tokens; a cache that streams must forget them.
#
# 1. Write `roll`, which puts new keys and values into the cache of a block and
#    lets go of all but the first $s$ and the latest $w$ tokens, the newest one
#    included. Keys carry their original positions. The prompt comes at once
#    and has at most $s + w$ tokens, after it they come one by one. Then let
#    the model read with it: prefill 256 tokens of the passage, decode the next
#    128 one at a time with $w = 256$ and $s = 4$, and compare the mean loss of
#    what follows positions 256 to 382 with that of `window_attention` on the
#    same tokens.
# 2. Original positions run out. To go on forever, every offset between a query
#    and a key must stay below $s + w$. Write `positions(t, s, w)`: the
#    positions to rotate the held keys to when token $t$ is the newest, sinks
#    first and the window from its oldest token on; the query is rotated to the
#    last of them. With $s = 4$ and $w = 124$, at how many different positions
#    does a key stand during its time in the window of a long stream, and at
#    how many does a sink? What has to be stored, then: keys before or after
#    rotation? And why can a model with learned positions not be helped so?
# 3. Train a small character GPT with rotary positions on 128 tokens of
#    context, as in the first lesson, for 300 steps. Stream over characters
#    from 110,000 on, which it has never seen, with $s + w = 128$ (a few
#    thousand will do; the whole stretch up to 119,999 takes longer). What is
#    the loss with $s = 4$, with $s = 0$, and what if no cache is kept and the
#    latest 128 characters are read anew for each prediction? Leave out the
#    first 256, where windows are not full. Report what comes out.

# %% [markdown]
# <details>
# <summary>Hint 1</summary>
#
# Which rows of a full cache stay, in order: the first s, then all but the
# oldest of the window, then the new one. In a buffer nothing need move: the
# new row takes the place of the oldest one, and attention does not ask in
# which order rows lie, if each key carries its position.
#
# </details>
#
# <details>
# <summary>Hint 2</summary>
#
# A key that is stored rotated has its position for good. Stored as it was
# projected, it can be rotated at each step to wherever it stands by then; the
# query stands where the newest key does.
#
# </details>
#
# <details>
# <summary>Hint 3</summary>
#
# Set `attention.rope = False` in each block of the trained model and rotate in
# the step yourself: all keys as they lie, sinks first, from position 0 on; the
# query with an offset. Compare losses of the same characters, all after the
# window has filled.
#
# </details>

# %% exercise="streaming"
# B sequences, G key-value heads, T new tokens, hd head width
def roll(ks, vs, k, v, t, s, w):
    """The buffers ks, vs (B, s + w, G, hd) with new rows k, v (B, T, G, hd).

    t: number of tokens so far, may be traced; the first t slots are filled,
    or all. A prompt comes at t = 0.
    """
    ...

def positions(t, s, w):
    """A list: positions of the keys that are held once token t has come."""
    ...

cached = {'mask': ..., 'cache': ...}         # losses
turns = {'sink': ..., 'window': ...}         # positions of a key
stream = {'s=4': ..., 's=0': ..., 'recompute': ...}    # losses

# %%
d2l.attempt('streaming', roll=d2l.try_rolling(roll), cached=cached,
            positions=positions, turns=turns, stream=stream)

# %% [markdown] tags=["expected"]
# ```output
# streaming: not attempted
# ```

# %% [markdown]
# ## All Methods Side by Side
#
# Now we can compare what these lessons were about. One block of the model at
# hand gives keys and values for the passage. From them each method *makes*
# the arrays that it would keep, and we count the bytes that they hold, times
# the number of blocks, beside what its formula says. That checks shapes, not a
# running model. Where the model has fewer or more heads than a method asks
# for, heads are repeated or averaged. For MLA we take the proportions of
# DeepSeek-V2, $r = 4 d_h$ and $d_R = d_h / 2$. Linear attention
# (Katharopoulos et al., 2020) keeps a state, the sum of outer products of
# keys and values. The window keeps all heads, $H_{kv} = H$.
#
# Then we do each of it to the finished model, *without* any training, and let
# it read the passage: heads averaged, keys and values of rank $r$ (the oracle
# of the lesson on low rank), a window with sinks, and features in place of
# the softmax. What its loss rises by is the last column. It says nothing about
# a model that was trained with the method. It says what training would have to
# make good.

# %%
attention = model.blks[0].attention
L, H, D = len(model.blks), attention.num_heads, model.token_emb.features
hd = D // H
n, r, d_R, window, sinks = sizes['tokens'], 4 * hd, hd // 2, 256, 4
k, v = middle['k'], middle['v']

def with_heads(x, G):
    """Keys or values (1, n, .., hd) for G heads, an array of their own."""
    if G > x.shape[2]:
        return x.repeat(G // x.shape[2], axis=2)
    return x.reshape(*x.shape[:2], G, -1, hd).mean(3)

def latents(k, v):
    """Coordinates in r directions, and a rotated part of one head."""
    M = d2l.rows(k, v)
    _, _, Vh = jnp.linalg.svd(M, full_matrices=False)
    return M @ Vh[:, :r].mT, k[:, :, 0, :d_R]

def state(k, v):
    """Sums over tokens of features times values, and of features."""
    features = jax.nn.elu(k) + 1
    return jnp.einsum('bthd,bthe->bhde', features, v), features.sum(1)

latest = jnp.r_[:sinks, n - window:n]
held = {
    'full cache': [with_heads(x, H) for x in (k, v)],
    'GQA': [with_heads(x, H // 3) for x in (k, v)],
    'MQA': [with_heads(x, 1) for x in (k, v)],
    'MLA': latents(k, v),
    'window with sinks': [with_heads(x, H)[:, latest] for x in (k, v)],
    'linear attention': state(with_heads(k, H), with_heads(v, H)),
}

# %%
def shared(G):
    """An attn_fn with keys and values averaged to G heads."""
    return lambda q, k, v, i: d2l.stock_attention(
        q, with_heads(k, G), with_heads(v, G))

@jax.jit
def linear_attention(q, k, v, i):
    """An attn_fn with features in place of the softmax."""
    k, v = with_heads(k, H), with_heads(v, H)                # (B, T, H, hd)
    scores = jnp.tril(jnp.einsum('bthd,bshd->bhts', jax.nn.elu(q) + 1,
                                 jax.nn.elu(k) + 1))
    return jnp.einsum('bhts,bshd->bthd',
                      scores / scores.sum(-1, keepdims=True), v)

on_the_spot = {'GQA': shared(H // 3), 'MQA': shared(1),
               'MLA': d2l.lowrank_kv(r), 'linear attention': linear_attention}
for method, attn_fn in on_the_spot.items():
    losses[method] = d2l.token_losses(
        d2l.forward_blocks(model, X, attn_fn), X)[0]
losses['full cache'] = losses['full']
losses['window with sinks'] = losses[f'window {window}, sinks {sinks}']

# %%
formulas = {
    'full cache': lambda n: d2l.cache_bytes(L, H, hd, n),
    'GQA': lambda n: d2l.cache_bytes(L, H // 3, hd, n),
    'MQA': lambda n: d2l.cache_bytes(L, 1, hd, n),
    'MLA': lambda n: d2l.latent_cache_bytes(L, r, d_R, n),
    'window with sinks': lambda n: d2l.cache_bytes(
        L, H, hd, n, window=window, sinks=sinks),
    'linear attention': lambda n: d2l.state_bytes(L, H, hd),
}
stores = {
    'full cache': ('nothing', '2 L n H d_h'),
    'GQA': (f'heads, {H} to {H // 3}', '2 L n H_kv d_h'),
    'MQA': (f'heads, {H} to 1', '2 L n d_h'),
    'MLA': (f'width, {2 * H * hd} to {r + d_R}', 'L n (r + d_R)'),
    'window with sinks': (f'tokens, n to {window} + {sinks}',
                          '2 L (w + s) H_kv d_h'),
    'linear attention': ('tokens, n to a state', 'L H d_h (d_h + 1)'),
}
own = d2l.held_bytes(d2l.init_cache(model, 1, n)) / n
table = []
for method, formula in formulas.items():
    measured = L * d2l.held_bytes(held[method])
    assert measured == formula(n), f'{method}: {measured}, {formula(n)}'
    table.append((method, *stores[method],
                  *(f'{x / n / 1024:.1f}' for x in (formula(n), measured)),
                  f'{tail(method) - tail("full"):+z.2f}'))
d2l.print_table(('method', 'reduces', 'stores', 'KiB', 'held', 'loss'),
                table, (11, 14, 20, 5, 5, 5))
print(f'{name} itself: {own / 1024:.1f} KiB per token')

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# method       reduces         stores                KiB    held   loss
# -----------  --------------  --------------------  -----  -----  -----
# full cache   nothing         2 L n H d_h           135.0  135.0  +0.00
# GQA          heads, 9 to 3   2 L n H_kv d_h        45.0   45.0   +0.00
# MQA          heads, 9 to 1   2 L n d_h             15.0   15.0   +6.51±0.02
# MLA          width, 1152 to  L n (r + d_R)         33.8   33.8   +0.10±0.02
#              288
# window with  tokens, n to    2 L (w + s) H_kv d_h  34.3   34.3   +0.06±0.02
# sinks        256 + 4
# linear       tokens, n to a  L H d_h (d_h + 1)     4.3    4.3    +4.86±0.02
# attention    state
# smollm2 itself: 45.0 KiB per token
# ```
# ```output smollm2 sotu1898
# method       reduces         stores                KiB    held   loss
# -----------  --------------  --------------------  -----  -----  -----
# full cache   nothing         2 L n H d_h           135.0  135.0  +0.00
# GQA          heads, 9 to 3   2 L n H_kv d_h        45.0   45.0   +0.00
# MQA          heads, 9 to 1   2 L n d_h             15.0   15.0   +5.88±0.02
# MLA          width, 1152 to  L n (r + d_R)         33.8   33.8   +0.25±0.02
#              288
# window with  tokens, n to    2 L (w + s) H_kv d_h  34.3   34.3   +0.05±0.02
# sinks        256 + 4
# linear       tokens, n to a  L H d_h (d_h + 1)     4.3    4.3    +4.40±0.02
# attention    state
# smollm2 itself: 45.0 KiB per token
# ```
# ```output gpt2 timemachine
# method       reduces         stores                KiB    held   loss
# -----------  --------------  --------------------  -----  -----  -----
# full cache   nothing         2 L n H d_h           72.0   72.0   +0.00
# GQA          heads, 12 to 4  2 L n H_kv d_h        24.0   24.0   ~…
# MQA          heads, 12 to 1  2 L n d_h             6.0    6.0    ~…
# MLA          width, 1536 to  L n (r + d_R)         13.5   13.5   -0.09±0.02
#              288
# window with  tokens, n to    2 L (w + s) H_kv d_h  18.3   18.3   +0.18±0.04
# sinks        256 + 4
# linear       tokens, n to a  L H d_h (d_h + 1)     2.3    2.3    ~…
# attention    state
# gpt2 itself: 72.0 KiB per token
# ```
# ```output gpt2 sotu1898
# method       reduces         stores                KiB    held   loss
# -----------  --------------  --------------------  -----  -----  -----
# full cache   nothing         2 L n H d_h           72.0   72.0   +0.00
# GQA          heads, 12 to 4  2 L n H_kv d_h        24.0   24.0   ~…
# MQA          heads, 12 to 1  2 L n d_h             6.0    6.0    ~…
# MLA          width, 1536 to  L n (r + d_R)         13.5   13.5   ~…
#              288
# window with  tokens, n to    2 L (w + s) H_kv d_h  18.3   18.3   ~…
# sinks        256 + 4
# linear       tokens, n to a  L H d_h (d_h + 1)     2.3    2.3    ~…
# attention    state
# gpt2 itself: 72.0 KiB per token
# ```

# %% [markdown]
# Bytes are per token of the passage of 1024, in 32 bits, all blocks together,
# first by the formula, then as held. Those of the first four methods stay as
# they are when $n$ grows; the last two store no more, so there the quotient
# falls. Two methods wreck SmolLM2, which never met them in training: heads
# averaged to one, and features in place of the softmax. Its own three heads
# were there while it learned. A window with sinks costs it little; so may the
# oracle, but that knows the passage.
#
# What each method asks in return, and what there is to show for it, is the
# other half of the table.

# %%
beyond = {what: tail(what) - tail('full') for what in (
    'window 256, sinks 0', 'window 256, sinks 4')}
words = [
    ('full cache', 'nothing', 'none',
     f'the baseline here, loss {tail("full"):.2f}'),
    ('GQA', 'keys and values of their own for each head',
     'from the start, or a little more of a finished model',
     'trained in lesson 04; Ainslie et al., 2023; Llama, Mistral, SmolLM2'),
    ('MQA', 'as GQA, and more', 'as GQA', 'lesson 04; Shazeer, 2019'),
    ('MLA', 'what a latent of r numbers cannot carry', 'from the start',
     'an oracle in lesson 05; DeepSeek-AI, 2024'),
    ('window with sinks', 'every token in between',
     'none with sinks, from the start without',
     f'here {beyond["window 256, sinks 4"]:+.2f}, without sinks '
     f'{beyond["window 256, sinks 0"]:+.2f}; Xiao et al., 2024'),
    ('linear attention', 'the softmax, and exact look-up of a token',
     'from the start', 'Katharopoulos et al., 2020'),
]
d2l.print_table(('method', 'what is lost', 'training', 'evidence'), words,
                (10, 19, 17, 22))

# %% [markdown] tags=["expected"]
# ```output smollm2 timemachine
# method      what is lost         training           evidence
# ----------  -------------------  -----------------  ----------------------
# full cache  nothing              none               the baseline here,
#                                                     loss 3.09±0.02
# GQA         keys and values of   from the start,    trained in lesson 04;
#             their own for each   or a little more   Ainslie et al., 2023;
#             head                 of a finished      Llama, Mistral,
#                                  model              SmolLM2
# MQA         as GQA, and more     as GQA             lesson 04; Shazeer,
#                                                     2019
# MLA         what a latent of r   from the start     an oracle in lesson
#             numbers cannot                          05; DeepSeek-AI, 2024
#             carry
# window      every token in       none with sinks,   here +0.06±0.02, without
# with sinks  between              from the start     sinks +0.64±0.02; Xiao et
#                                  without            al., 2024
# linear      the softmax, and     from the start     Katharopoulos et al.,
# attention   exact look-up of a                      2020
#             token
# ```
# ```output smollm2 sotu1898
# method      what is lost         training           evidence
# ----------  -------------------  -----------------  ----------------------
# full cache  nothing              none               the baseline here,
#                                                     loss 3.93±0.02
# GQA         keys and values of   from the start,    trained in lesson 04;
#             their own for each   or a little more   Ainslie et al., 2023;
#             head                 of a finished      Llama, Mistral,
#                                  model              SmolLM2
# MQA         as GQA, and more     as GQA             lesson 04; Shazeer,
#                                                     2019
# MLA         what a latent of r   from the start     an oracle in lesson
#             numbers cannot                          05; DeepSeek-AI, 2024
#             carry
# window      every token in       none with sinks,   here +0.05±0.02, without
# with sinks  between              from the start     sinks +0.75±0.02; Xiao et
#                                  without            al., 2024
# linear      the softmax, and     from the start     Katharopoulos et al.,
# attention   exact look-up of a                      2020
#             token
# ```
# ```output gpt2 timemachine
# method      what is lost         training           evidence
# ----------  -------------------  -----------------  ----------------------
# full cache  nothing              none               the baseline here,
#                                                     loss 3.58±0.02
# GQA         keys and values of   from the start,    trained in lesson 04;
#             their own for each   or a little more   Ainslie et al., 2023;
#             head                 of a finished      Llama, Mistral,
#                                  model              SmolLM2
# MQA         as GQA, and more     as GQA             lesson 04; Shazeer,
#                                                     2019
# MLA         what a latent of r   from the start     an oracle in lesson
#             numbers cannot                          05; DeepSeek-AI, 2024
#             carry
# window      every token in       none with sinks,   here +0.18±0.04, without
# with sinks  between              from the start     sinks +4.67±0.04; Xiao et
#                                  without            al., 2024
# linear      the softmax, and     from the start     Katharopoulos et al.,
# attention   exact look-up of a                      2020
#             token
# ```
# ```output gpt2 sotu1898
# method      what is lost         training           evidence
# ----------  -------------------  -----------------  ----------------------
# full cache  nothing              none               the baseline here,
#                                                     loss ~…
# GQA         keys and values of   from the start,    trained in lesson 04;
#             their own for each   or a little more   Ainslie et al., 2023;
#             head                 of a finished      Llama, Mistral,
#                                  model              SmolLM2
# MQA         as GQA, and more     as GQA             lesson 04; Shazeer,
#                                                     2019
# MLA         what a latent of r   from the start     an oracle in lesson
#             numbers cannot                          05; DeepSeek-AI, 2024
#             carry
# window      every token in       none with sinks,   here ~…, without
# with sinks  between              from the start     sinks ~…; Xiao et
#                                  without            al., 2024
# linear      the softmax, and     from the start     Katharopoulos et al.,
# attention   exact look-up of a                      2020
#             token
# ```

# %%
contexts = [2**i for i in range(3, 18)]  # beyond what the model can read
d2l.plot(contexts, [[formula(n) / 2**20 for n in contexts]
                    for formula in formulas.values()],
         legend=[*formulas], xscale='log', yscale='log',
         xlabel='context (tokens)', ylabel='cache (MiB)', figsize=(4.5, 3))

# %% [markdown] tags=["expected"]
# ```output
# [figure]
# ```

# %% [markdown]
# Three of the lines are parallel to the full cache: sharing heads and latents
# buy a factor, at every context. Two are flat: a window and a state buy a
# bound, and pay with what they can no longer look up. Up to 32 tokens the
# state is the largest of all. The methods do not exclude each other: Mistral
# 7B has grouped heads and a window.
#
# Which one to choose is not in this table. A loss on one text does not measure
# recall of one fact a hundred pages back, and no model of ours was trained for
# the method that it was tried with, apart from grouped heads. What the table
# does say is what a finished model can be given on the spot, a window with
# sinks, and what has to be trained: all the other methods that save memory,
# from the start or at least a little more.
