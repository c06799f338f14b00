"""Exercises of lesson 02: what the cache costs.

References are written out here, apart from d2l_ext.formulas, which the
lesson uses, and from the solutions.
"""

from .answers import NotYet, table
from .diagnose import tables
from .engine import Exercise, Part

HEADS = (64, 8, 1)          # key-value heads: MHA, Llama-2-70B's GQA, MQA
WEIGHTS = 140_000_000_000   # bytes
CARDS = 160_000_000_000     # bytes, both together
CONTEXT = 4096


def per_token(kv_heads):
    """Bytes: a key and a value, 80 layers, width 128, 2 bytes each."""
    one_head = 128 * 2
    return (one_head + one_head) * kv_heads * 80


def context(kv_heads):
    return WEIGHTS / per_token(kv_heads)


def sequences(kv_heads, room=CARDS - WEIGHTS):
    return room // (CONTEXT * per_token(kv_heads))


def times(factor):
    return lambda kv_heads: per_token(kv_heads) * factor


def heads(kv_heads):
    return f'{kv_heads} key-value head{"s" if kv_heads > 1 else ""}'


PER_TOKEN = tables(per_token, [
    (lambda g: per_token(64),
     'that is the size with one key and one value for each *query* head; what '
     'is kept is counted by the heads that have keys and values of their own'),
    (times(1 / 2),
     'half of it is there: a token leaves a key *and* a value, and an element '
     'takes two bytes; which of the two factors of two is missing?'),
    (times(1 / 4),
     'two factors of two are missing: that of keys and values, and the bytes '
     'of a 16-bit number'),
    (times(1 / 80),
     'that is the size for one layer; every layer keeps keys and values of '
     'its own'),
    (times(2), 'that is for elements of 32 bits; these have 16'),
    (times(8), 'that counts bits; asked for are bytes'),
    (times(1 / 128),
     'a key is not one number, it has as many as a head is wide'),
    (times(CONTEXT),
     'that is the cache of a whole context of 4096; asked for is one token'),
], rtol=2e-3, units=True, where=heads)


def longer_with_fewer(table, values):
    """A property: fewer heads, smaller rows, more of them for 140 GB."""
    given = [table.given[g].value for g in HEADS if g in table.given]
    if any(a > b > 0 for a, b in zip(given, given[1:], strict=False)):
        raise NotYet('fewer key-value heads make a token cheaper, so more of '
                     'them fill the same memory; here the number falls')


CONTEXT_OF_WEIGHTS = tables(context, [
    (lambda g: context(g) / 2,
     'half as long as it is: is the cache counted in bytes of two per '
     'element, and are the weights 140 GB as they stand?'),
    (lambda g: context(g) * 2,
     'twice as long as it is: a token brings a key *and* a value, two bytes '
     'for each element, and 140 GB already are bytes'),
    (lambda g: context(64),
     'that is the context with 64 key-value heads; the bytes of a token '
     'depend on how many there are'),
    (lambda g: context(g) * 80,
     'that fills the memory with the cache of one layer; a token leaves keys '
     'and values in all of them'),
    (lambda g: CARDS / per_token(g),
     'that is where the cache would fill the two cards; asked for is where it '
     'is as large as the weights'),
    (lambda g: (CARDS - WEIGHTS) / per_token(g),
     'that is what fits beside the weights; asked for is where cache and '
     'weights are equal'),
    (lambda g: 1 / context(g),
     'that is a token as a share of the weights; asked for is how many tokens '
     'make up all of them'),
], rtol=0.02, units=True, where=heads,
    after=('token_bytes', lambda size: WEIGHTS / size))


GIB = 2**30
SEQUENCES = tables(sequences, [
    (lambda g: (CARDS - WEIGHTS) / (CONTEXT * per_token(g)),
     'part of a sequence does not fit: the number is a whole one'),
    (lambda g: -(-(CARDS - WEIGHTS) // (CONTEXT * per_token(g))),
     'the last one does not fit whole: which way has the number to be '
     'rounded?'),
    (lambda g: sequences(g, CARDS),
     'the weights are missing: they lie on the same two cards, and only what '
     'is left of the memory can hold caches'),
    (lambda g: sequences(g, 160 * GIB - WEIGHTS),
     'the cards are counted in GiB here and the weights in GB; take 10^9 '
     'bytes for a GB in both'),
    (lambda g: sequences(g, 20 * GIB),
     'that is with 2^30 bytes for a GB (GB for GiB); take 10^9'),
    (lambda g: sequences(64),
     'that is with one key-value head for each query head; the cache of a '
     'sequence depends on how many there are'),
    (lambda g: sequences(g, 80 * (CARDS - WEIGHTS)),
     'that is with the cache of a single layer; a sequence leaves keys and '
     'values in all of them'),
    (lambda g: sequences(g, 2 * (CARDS - WEIGHTS)),
     'that would fit if a token took half of its bytes: a key *and* a value, '
     'two bytes for each element'),
    (lambda g: 0,
     'the weights need both cards together, and do not fill them'),
], rtol=1e-9, where=heads, after=('token_bytes', lambda size: (
    CARDS - WEIGHTS) // (CONTEXT * size)))


CACHE_70B = Exercise(
    id='cache-70b', lesson='02_memory', title='The Cache of a Large Model',
    kinds=('paper',), minutes=15,
    hints=(
        'The formula of this lesson has seven factors. For one token of one '
        'sequence two of them are 1. Write the others in a row with a name '
        'under each, and ask of the number of heads which heads it counts.',
        'For the context divide bytes by bytes per token, and look at the '
        'units: 140 GB are 140 · 10⁹ bytes, while 1 KiB is 1024 bytes.',
        'Weights and caches share the memory of both cards. Work out first '
        'what the weights leave, then what one sequence of 4096 tokens '
        'takes; a sequence that fits only in part does not fit.'),
    parts=(
        Part('token_bytes', table(HEADS, 'bytes'), (PER_TOKEN,),
             'A token of the model as it was built takes as much memory as '
             'some 160,000 of its weights; sharing one key-value head among '
             'eight query heads saved seven eighths of that.'),
        Part('break_even', table(HEADS, 'tokens'),
             (longer_with_fewer, CONTEXT_OF_WEIGHTS),
             'With a head of its own for each query head, thirteen contexts '
             'of the 4096 that the model is made for already weigh as much as '
             'the model; as built, it takes more than a hundred.'),
        Part('sequences', table(HEADS, 'sequences'), (SEQUENCES,),
             'This is what sharing heads is for: not one longer text, but '
             'many users whose steps share each read of the weights.'),
    ))
