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
from d2l_ext import jax as d2l

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
