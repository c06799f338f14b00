"""Lesson 02."""

from fractions import Fraction

import numpy as np

from . import Wrong

HEADS = (64, 8, 1)
SIZE = {64: 2_621_440, 8: 327_680, 1: 40_960}
EVEN = {64: 53_406, 8: 427_246, 1: 3_417_969}
FIT = {64: 1, 8: 14, 1: 119}
RIGHT = {'cache-70b': dict(token_bytes=SIZE, break_even=EVEN, sequences=FIT)}

OTHER = [
    ('cache-70b', 'units', dict(
        token_bytes={64: '2.5 MiB', 8: '320 KiB', 1: '41 kB'},
        sequences={64: '1 sequence', 8: '14', 1: '119 sequences'})),
    ('cache-70b', 'rounded megabytes', dict(
        token_bytes={64: '2.62 MB', 8: '0.33 MB', 1: '0.041 MB'},
        break_even={64: '53,400', 8: '427k tokens', 1: '3.42M tokens'})),
    ('cache-70b', 'types', dict(
        token_bytes={'64': np.int64(2_621_440), 8: Fraction(655_360, 2),
                     np.int32(1): np.array([40_960])},
        break_even={g: 140e9 / SIZE[g] for g in HEADS})),
    ('cache-70b', 'exact weights of the lesson\'s table', dict(
        break_even={64: 52_625, 8: 421_001, 1: 3_368_001})),
]


def wrong(name, says, **answers):
    return Wrong('cache-70b', name, says, answers)


WRONG = [
    wrong('query heads', 'for each *query* head',
          token_bytes={g: SIZE[64] for g in HEADS}),
    wrong('K without V', 'a key *and* a value, and an element',
          token_bytes={g: n / 2 for g, n in SIZE.items()}),
    wrong('elements of K alone', 'two factors of two are missing',
          token_bytes={g: n / 4 for g, n in SIZE.items()}),
    wrong('per layer', 'the size for one layer',
          token_bytes={g: n / 80 for g, n in SIZE.items()}),
    wrong('fp32', 'elements of 32 bits',
          token_bytes={g: n * 2 for g, n in SIZE.items()}),
    wrong('bits', 'that counts bits',
          token_bytes={g: n * 8 for g, n in SIZE.items()}),
    wrong('no head width', 'as many as a head is wide',
          token_bytes={g: n / 128 for g, n in SIZE.items()}),
    wrong('a whole context', 'cache of a whole context',
          token_bytes={g: n * 4096 for g, n in SIZE.items()}),
    wrong('KB for KiB', 'units of 1000 and of 1024',
          token_bytes={**SIZE, 8: '320 KB'}),
    wrong('an unknown cause', 'too large. Write the formula down',
          token_bytes={**SIZE, 8: 500_000}),
    wrong('tokens for bytes', "'320 tokens' is one of tokens",
          token_bytes={**SIZE, 8: '320 tokens'}),
    wrong('half done', 'still to do: 1', token_bytes={64: SIZE[64],
                                                      8: SIZE[8], 1: ...}),
    wrong('upside down heads', 'here the number falls',
          break_even={64: EVEN[1], 8: EVEN[8], 1: EVEN[64]}),
    wrong('elements for bytes', 'twice as long as it is',
          break_even={g: 2 * n for g, n in EVEN.items()}),
    wrong('weights in elements', 'half as long as it is',
          break_even={g: n / 2 for g, n in EVEN.items()}),
    wrong('one context for all', 'with 64 key-value heads',
          break_even={g: EVEN[64] for g in HEADS}),
    wrong('cards for weights', 'would fill the two cards',
          break_even={g: n * 8 / 7 for g, n in EVEN.items()}),
    wrong('room for weights', 'fits beside the weights',
          break_even={g: n / 7 for g, n in EVEN.items()}),
    wrong('GiB for GB', 'units of 1000 and of 1024',
          break_even={g: n * 1.073741824 for g, n in EVEN.items()}),
    wrong('a slip of before', 'follows from `token_bytes`',
          token_bytes={g: n / 80 for g, n in SIZE.items()},
          break_even={g: n * 80 for g, n in EVEN.items()}),
    wrong('rounded up', 'which way has the number',
          sequences={64: 2, 8: 15, 1: 120}),
    wrong('not rounded', 'the number is a whole one',
          sequences={g: 20e9 / 4096 / n for g, n in SIZE.items()}),
    wrong('weights forgotten', 'the weights are missing',
          sequences={64: 14, 8: 119, 1: 953}),
    wrong('cards in GiB', 'cards are counted in GiB',
          sequences={64: 2, 8: 23, 1: 189}),
    wrong('all in GiB', 'GB for GiB', sequences={64: 2, 8: 16, 1: 128}),
    wrong('nothing fits', 'need both cards together',
          sequences={64: 0, 8: 0, 1: 0}),
]
