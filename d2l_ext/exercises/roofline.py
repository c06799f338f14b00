"""Exercises of lesson 03: intensity and the roofline.

References are written out here, apart from d2l_ext.formulas, which the
lesson uses, and from the solutions.
"""

import numpy as np

from .answers import NotYet, function, number, table
from .diagnose import formulas, numbers, tables
from .engine import Exercise, Part

FLOP_RATE, BANDWIDTH = 83e12, 1e12   # FLOP/s, bytes/s
GPT2 = 123_551_232, 12, 12, 64       # N, L, H, hd of the lesson's model
HEADS = (12, 4, 1)
NAMES = ('N', 'L', 'H', 'G', 'hd', 'b', 'n')

TOKENS = numbers(166, [
    (83, 'that is the ridge itself, in FLOP per byte. One token brings fewer '
         'FLOPs than there are bytes of fp32 weights; how many of each does '
         'a parameter cost?'),
    (332, 'that is with one FLOP per parameter and token: it takes part in a '
          'multiplication *and* an addition'),
    (41.5, 'upside down: four bytes per parameter are paid once, two FLOPs '
           'once for each token; which of them grows with m?'),
    (167, 'with that many, arithmetic already takes longer than reading: it '
          'has to take no longer'),
    (165, 'one more still costs nothing: both sides may take the same time'),
    (0.5, 'that is the intensity of one token; how many of them reach the '
          'ridge?'),
    (1, 'one token leaves the arithmetic idle nearly all of the time: reading '
        'the weights takes as long for two'),
], rtol=1e-3)


def intensity(N, L, H, G, hd, b, n):
    """FLOPs over bytes of a decode step, each sum written out."""
    flops_one = 2 * N             # products with weights
    flops_one += 2 * L * H * hd * n   # scores
    flops_one += 2 * L * H * hd * n   # weighted sums
    cache_one = 4 * L * G * hd * n + 4 * L * G * hd * n   # keys, values
    return b * flops_one / (4 * N + b * cache_one)


def ratio(dense=2, pairs=4, weights=4, cache=8, share=False, of='G',
          weights_each=False, cache_once=False, off=0):
    """A formula that is wrong in one way, by the same factors."""
    def wrong(N, L, H, G, hd, b, n):
        flops = b * (dense * N + pairs * L * (G if share else H) * hd
                     * (n + off))
        moved = ((b if weights_each else 1) * weights * N
                 + (1 if cache_once else b) * cache * L
                 * (G if of == 'G' else H) * hd * (n + off))
        return flops / moved
    return wrong


WRONG_INTENSITIES = [
    (ratio(pairs=0),
     'the FLOPs of attention are missing: each query makes a product with '
     'every key, and a weighted sum of every value'),
    (ratio(cache=0), 'the bytes of the cache are missing'),
    (ratio(pairs=0, cache=0),
     'only the weights are counted; attention has FLOPs, and the cache bytes'),
    (ratio(cache_once=True),
     'the cache is counted once for all sequences: each has one of its own'),
    (ratio(weights_each=True),
     'the weights are counted for each sequence: they are read once per step, '
     'for the whole batch'),
    (ratio(of='H'),
     'the cache is counted with query heads; it holds key-value heads'),
    (ratio(share=True),
     'attention\'s FLOPs shrink with the key-value heads here: every *query* '
     'head still makes its own products, shared keys or not'),
    (ratio(cache=4), 'the cache holds keys *and* values, four bytes each'),
    (ratio(pairs=2),
     'half of attention\'s FLOPs: there are scores and a weighted sum, and a '
     'multiplication with an addition is two'),
    (ratio(dense=1, pairs=2),
     'a multiplication with its addition is two FLOPs, not one'),
    (ratio(weights=2, cache=4),
     'that is for 16 bits per number; here weights and cache have 32'),
    (ratio(off=-1),
     'one key too few: the token of this step also attends to itself'),
    (ratio(off=1), 'one key too many: n counts the token of this step'),
    (lambda *case: 1 / intensity(*case),
     'that is bytes per FLOP, the inverse of what is asked for'),
    (lambda N, L, H, G, hd, b, n: intensity(N, L, H, G, hd, 1, n),
     'it does not depend on b: what grows with the number of sequences, and '
     'what does not?'),
]


def small():
    return [(1000, 2, 4, 2, 3, 1, 5), (1000, 2, 4, 2, 3, 7, 5),
            (1000, 2, 4, 4, 3, 2, 11)]


def random_cases(rng=None):
    """Grouped heads, more than one sequence, any context."""
    rng = rng or np.random.default_rng()
    cases = []
    for _ in range(6):
        N, L, G, r, hd, b, n = map(int, rng.integers(
            [10**6, 2, 1, 2, 8, 2, 2], [10**8, 40, 9, 9, 129, 65, 5000]))
        cases.append((N, L, G * r, G, hd, b, n))
    return cases


def edges():
    """One sequence, one token, no sharing; one head shared by all."""
    return [(10**6, 3, 5, 5, 16, 1, 1), (10**6, 3, 6, 1, 16, 4, 1),
            (10**6, 3, 6, 1, 16, 10**4, 10**6)]


def rises_to_a_limit(call, values):
    """A property: a batch helps, but not without end."""
    N, L, H, hd = GPT2
    seen = [call(N, L, H, H, hd, b, 2048).value for b in (1, 8, 64, 10**4)]
    if any(a >= b for a, b in zip(seen, seen[1:], strict=False)):
        raise NotYet('more sequences share each read of the weights, so the '
                     'intensity has to rise with b; here it does not')
    if seen[-1] > 100 * seen[0]:
        raise NotYet('it grows with b without end; the bytes of which part '
                     'grow as fast as the FLOPs?')


def many(kv_heads):
    """b to infinity: the weights' bytes are shared away."""
    N, L, H, hd = GPT2
    return (2 * N / (L * hd * 2048) + 4 * H) / (8 * kv_heads)


SHARED_READS = Exercise(
    id='shared-reads', lesson='03_roofline', title='Sharing What Is Read',
    kinds=('paper', 'code'), minutes=25,
    hints=(
        'A pass takes as long as the slower of two things: its FLOPs at 83 '
        'TFLOP/s, or its bytes at 1 TB/s. With the cache left out only one '
        'of the two grows with the number of tokens. Where do they meet?',
        'For the step with b sequences make two lists, FLOPs and bytes, and '
        'mark in each what is there once and what is there b times. What is '
        'counted by query heads, and what by key-value heads?',
        'For b → ∞ divide both lists by b. What was there once is gone; the '
        'heads H and G are left in different places.'),
    parts=(
        Part('tokens', number('tokens'), (TOKENS,),
             'Up to here a pass over m tokens takes as long as one: a small '
             'model drafts a few tokens, the large one checks them all in a '
             'single step, and each that it accepts is a step saved.'),
        Part('intensity', function(', '.join(NAMES), number('FLOP/byte')),
             (formulas(small, intensity, WRONG_INTENSITIES, names=NAMES),
              rises_to_a_limit,
              formulas(random_cases, intensity, WRONG_INTENSITIES,
                       names=NAMES),
              formulas(edges, intensity, WRONG_INTENSITIES, names=NAMES)),
             'At a context near zero it is b / 2, as if there were only '
             'weights; each cached token pulls it towards the intensity of '
             'attention alone, H / G / 2.'),
        Part('one', number('FLOP/byte'), (numbers(
            intensity(*GPT2[:3], GPT2[2], GPT2[3], 1, 2048), [
                (ratio(pairs=0)(*GPT2[:3], 12, 64, 1, 2048),
                 'the FLOPs of attention are missing'),
                (ratio(cache=0)(*GPT2[:3], 12, 64, 1, 2048),
                 'the bytes of the cache are missing'),
                (ratio(dense=1, pairs=2)(*GPT2[:3], 12, 64, 1, 2048),
                 'a multiplication with its addition is two FLOPs'),
                (ratio(weights=2, cache=4)(*GPT2[:3], 12, 64, 1, 2048),
                 'that is for 16 bits per number; here they have 32'),
                (ratio(cache=4)(*GPT2[:3], 12, 64, 1, 2048),
                 'the cache holds keys *and* values'),
            ], rtol=2e-2),),
             'With as many key-value heads as query heads it is one half at '
             'any context: weights and cache both bring two FLOPs for four '
             'bytes, so leaving the cache out would not have shown. It is '
             'less than a hundredth of the ridge.'),
        Part('many', table(HEADS, 'FLOP/byte'), (tables(many, [
            (lambda g: many(12),
             'that is the limit without sharing; the bytes of a sequence '
             'depend on how many key-value heads there are'),
            (lambda g: many(12) * g / 12,
             'sharing works the other way: fewer key-value heads are fewer '
             'bytes for the same FLOPs'),
            (lambda g: 12 / g / 2,
             'that is attention alone; the products with weights, 2N FLOPs '
             'for each sequence, stay however large the batch is'),
            (lambda g: many(g) - 12 / g / 2,
             'the FLOPs of attention are missing'),
            (lambda g: (many(g) - 12 / g / 2) + 1 / 2,
             'attention\'s FLOPs shrink with the key-value heads here: every '
             'query head still makes its own products'),
            (lambda g: many(g) * 2,
             'twice of it: keys *and* values are read, four bytes for each '
             'number'),
            (lambda g: many(g) / 2,
             'half of it: a multiplication with its addition is two FLOPs, '
             'and keys and values are two tensors, of four bytes a number'),
            (lambda g: 83,
             'that is the ridge; the intensity of the step does not end '
             'there, nor need it get there'),
        ], rtol=2e-2, where='{} key-value heads'.format),),
             'The limit is a constant over the number of key-value heads, and '
             'none of these reaches the ridge of 83: at this context no batch '
             'makes decode wait for arithmetic, and sharing heads is what '
             'brings it closer.'),
    ))
