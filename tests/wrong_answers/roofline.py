"""Lesson 03."""

from decimal import Decimal

import numpy as np

from . import Wrong

MODEL = 123_551_232, 12, 12, 64


def intensity(N, L, H, G, hd, b, n):
    return b * (2 * N + 4 * L * H * hd * n) / (4 * N + 8 * b * L * G * hd * n)


MANY = {12: 2.1364, 4: 6.409, 1: 25.637}
RIGHT = {'shared-reads': dict(tokens=166, intensity=intensity, one=0.5,
                              many=MANY)}


def by_phases(N, L, H, G, hd, b, n):
    """Otherwise written, and NumPy's number out."""
    scores = np.float64(L * H * n) * hd * 2
    sums = scores
    kv = np.prod([2.0, L, G, hd, n, 4.0])
    return (N + N + scores + sums) / (N * 4 / b + kv)


def in_words(N, L, H, G, hd, b, n):
    return f'{intensity(N, L, H, G, hd, b, n):.9f} FLOP/byte'


OTHER = [
    ('shared-reads', 'otherwise written', dict(
        tokens='166 tokens', intensity=by_phases, one=Decimal('0.50'),
        many={12: '2.14 FLOP/byte', 4: '6.4', 1: 26})),
    ('shared-reads', 'text out of a function', dict(intensity=in_words)),
    ('shared-reads', 'a very large batch', dict(
        one=intensity(*MODEL[:3], 12, 64, 1, 2048),
        many={G: intensity(*MODEL[:3], G, 64, 10**9, 2048)
              for G in (12, 4, 1)})),
]


def wrong(name, says, **answers):
    return Wrong('shared-reads', name, says, answers)


def no_scores(N, L, H, G, hd, b, n):
    return b * 2 * N / (4 * N + 8 * b * L * G * hd * n)


def no_cache(N, L, H, G, hd, b, n):
    return b * (2 * N + 4 * L * H * hd * n) / (4 * N)


def weights_only(N, L, H, G, hd, b, n):
    return b / 2


def one_cache(N, L, H, G, hd, b, n):
    return b * (2 * N + 4 * L * H * hd * n) / (4 * N + 8 * L * G * hd * n)


def weights_each(N, L, H, G, hd, b, n):
    return (2 * N + 4 * L * H * hd * n) / (4 * N + 8 * L * G * hd * n)


def query_heads(N, L, H, G, hd, b, n):
    return intensity(N, L, H, H, hd, b, n)


def flops_shared(N, L, H, G, hd, b, n):
    return b * (2 * N + 4 * L * G * hd * n) / (4 * N + 8 * b * L * G * hd * n)


def keys_only(N, L, H, G, hd, b, n):
    return b * (2 * N + 4 * L * H * hd * n) / (4 * N + 4 * b * L * G * hd * n)


def sixteen_bits(N, L, H, G, hd, b, n):
    return 2 * intensity(N, L, H, G, hd, b, n)


def earlier_only(N, L, H, G, hd, b, n):
    return intensity(N, L, H, G, hd, b, n - 1)


def inverse(N, L, H, G, hd, b, n):
    return 1 / intensity(N, L, H, G, hd, b, n)


def raises(N, L, H, G, hd, b, n):
    return {}['n']


def no_return(N, L, H, G, hd, b, n):
    b * n  # noqa: B018


WRONG = [
    wrong('the ridge', 'that is the ridge itself', tokens=83),
    wrong('one FLOP', 'with one FLOP per parameter', tokens=332),
    wrong('bytes over FLOPs', 'upside down', tokens=41.5),
    wrong('one too many', 'arithmetic already takes longer', tokens=167),
    wrong('one too few', 'one more still costs nothing', tokens=165),
    wrong('its intensity', 'the intensity of one token', tokens=0.5),
    wrong('an array', 'asked for is one number', tokens=[166, 166]),
    wrong('not a number', 'nan is not a finite number',
          tokens=float('nan')),
    wrong('FLOPs of attention', 'the FLOPs of attention are missing: each',
          intensity=no_scores),
    wrong('no cache', 'the bytes of the cache are missing',
          intensity=no_cache),
    wrong('weights only', 'only the weights are counted',
          intensity=weights_only),
    wrong('one cache for all', 'the cache is counted once for all',
          intensity=one_cache),
    wrong('weights for each', 'the weights are counted for each sequence',
          intensity=weights_each),
    wrong('query heads', 'the cache is counted with query heads',
          intensity=query_heads),
    wrong('FLOPs shared', 'FLOPs shrink with the key-value heads here: every '
          '*query*', intensity=flops_shared),
    wrong('K without V', 'the cache holds keys *and* values, four',
          intensity=keys_only),
    wrong('16 bits', 'for 16 bits per number; here weights',
          intensity=sixteen_bits),
    wrong('without itself', 'one key too few', intensity=earlier_only),
    wrong('inverse', 'bytes per FLOP, the inverse', intensity=inverse),
    wrong('an exception', "n=5 raised KeyError: 'n'", intensity=raises),
    wrong('no return', 'Does a `return` miss?', intensity=no_return),
    wrong('too few arguments', 'raised TypeError',
          intensity=lambda b, n: b * n),
    wrong('one without attention', 'the FLOPs of attention are missing',
          one=0.383),
    wrong('one without cache', 'the bytes of the cache are missing',
          one=0.653),
    wrong('no sharing', 'the limit without sharing',
          many=dict.fromkeys(MANY, MANY[12])),
    wrong('sharing upside down', 'sharing works the other way',
          many={g: MANY[12] * g / 12 for g in MANY}),
    wrong('attention alone', 'that is attention alone',
          many={g: 6 / g for g in MANY}),
    wrong('FLOPs shared in the limit', "attention's FLOPs shrink",
          many={g: MANY[g] - 6 / g + 1 / 2 for g in MANY}),
    wrong('limit at the ridge', 'does not end there',
          many=dict.fromkeys(MANY, 83)),
    wrong('keys only in the limit', 'twice of it',
          many={g: 2 * x for g, x in MANY.items()}),
]
