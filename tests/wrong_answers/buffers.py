"""Lesson 02: bytes and times of steps, in both backends."""

import numpy as np

from . import Wrong

N, B = 256, 8
LAYER = 2 * 12 * 64 * 4 * N * B   # keys and values of one layer, all batches
ONE = 12 * LAYER // B             # the cache of one sequence
WEIGHTS = 494_204_928             # bytes
RATE = 3.3e10                     # bytes per second
SECONDS = {1: 0.0561, 2: 0.0702, 4: 0.1111, 8: 0.1492}
FASTER = {1: 0.0502, 2: 0.0597, 4: 0.0711, 8: 0.1103}


def line(seconds, change=lambda t0, t1: (t0, t1), context=N):
    t1, t0 = np.polyfit(list(seconds), list(seconds.values()), 1)
    t0, t1 = change(t0, t1)
    return {'context': context, 'seconds': seconds, 't0': t0, 't1': t1}


def reading(t0=WEIGHTS / RATE, t1=ONE / RATE):
    return {'context': N, 'bandwidth': RATE, 't0': t0, 't1': t1}


def peaks(growing, in_place=LAYER + 250_000):
    return {'context': N, 'batch': B, 'growing': growing,
            'in_place': in_place}


def donation(kept, donated=14_000_000):
    return {'context': N, 'batch': B, 'kept': kept, 'donated': donated}


def factor(H, G, rope):
    return (H + 2 * G + bool(rope) * G) / (2 * G)


HELD = {'rope': 2, 'rope, a step later': 1.0, 'learned': 1.5,
        'learned, a step later': 1}
SHARED = dict(copied=line(SECONDS), reading=reading(), in_place=line(FASTER))
RIGHT = {
    ('cache-buffers', 'torch'): dict(
        SHARED, held=HELD, factor=factor, peaks=peaks(2 * LAYER + 200_000)),
    ('cache-buffers', 'jax'): dict(
        SHARED, donation=donation(12 * LAYER + 14_000_000))}
OTHER = [('cache-buffers', name, changed) for name, changed in (
    ('rounded, as text', dict(
        copied={'context': N, 'seconds': {
            str(b): f'{t:.4f}' for b, t in SECONDS.items()},
            't0': '0.0465', 't1': '0.01338'})),
    ('three batches, other sizes', dict(
        copied=line({1: 0.02, 3: 0.041, 5: 0.057}, context=100),
        in_place=line({1: 0.01, 3: 0.021, 5: 0.027}, context=100))),
)]


def both(name, says, **answers):
    for backend in ('torch', 'jax'):
        yield Wrong('cache-buffers', name, says, answers, backend)


def torch(name, says, **answers):
    return Wrong('cache-buffers', name, says, answers, 'torch')


def jax(name, says, **answers):
    return Wrong('cache-buffers', name, says, answers, 'jax')


def fitted(change):
    return line(SECONDS, change)


def through_ends(t0, t1):
    slope = (SECONDS[8] - SECONDS[1]) / 7
    return SECONDS[1] - slope, slope


def through_origin(t0, t1):
    b, t = map(np.array, zip(*SECONDS.items(), strict=True))
    return 0, b @ t / (b @ b)


NOISE = {1: 0.05, 2: 0.18, 4: 0.35, 8: 0.9}
WRONG = [
    # what is held
    torch('a copy', 'does the cache keep a copy', held={**HELD, 'rope': 1}),
    torch('the cache of before', 'before it was measured',
          held={**HELD, 'rope, a step later': 2}),
    torch('rotated keys as views', 'Of which tensors does each case',
          held={**HELD, 'learned': 2}),
    torch('all upside down', 'held over what the formula says',
          held={'rope': 1 / 2, 'rope, a step later': 1, 'learned': 2 / 3,
                'learned, a step later': 1}),
    torch('parts', 'that counts parts of a buffer', held={
        **HELD, 'rope': 4, 'learned': 3}),
    torch('without sharing', 'that is without sharing',
          factor=lambda H, G, rope: 2 if rope else 1.5),
    torch('the other way round', 'the other way round',
          factor=lambda H, G, rope: factor(H, G, not rope)),
    torch('no new key', 'beside the buffer that the value',
          factor=lambda H, G, rope: (H + 2 * G) / (2 * G)),
    torch('the buffer twice', 'however many views it has',
          factor=lambda H, G, rope: (H + 2 * G + rope * G) / (2 * G)
          * (1 if rope else 2)),
    torch('keys alone needed', 'needed are keys *and* values',
          factor=lambda H, G, rope: 2 * factor(H, G, rope)),
    # peaks
    torch('made outside', 'less than the keys and values themselves',
          peaks=peaks(LAYER, 200_000)),
    torch('cat in both', 'is `cat` still in the second',
          peaks=peaks(2 * LAYER, 2 * LAYER)),
    torch('exchanged', 'which is which', peaks=peaks(
        LAYER, 2 * LAYER)),
    torch('values grown', 'is one of the two still grown',
          peaks=peaks(2.5 * LAYER, 2 * LAYER - 1000)),
    torch('all layers', 'Watch the step of one layer',
          peaks=peaks(13 * LAYER, 12 * LAYER)),
    torch('two old copies', 'more than one old copy',
          peaks=peaks(3 * LAYER, LAYER)),
    jax('both donated', 'both functions donate',
        donation=donation(14_000_000)),
    jax('exchanged', 'which is which', donation=donation(
        14_000_000, 12 * LAYER + 14_000_000)),
    jax('keys alone', 'two buffers', donation=donation(
        6 * LAYER + 14_000_000)),
    jax('one block', 'the cache of one block', donation=donation(
        LAYER + 14_000_000)),
    jax('one sequence', 'that is with one sequence', donation=donation(
        ONE + 14_000_000)),
    jax('other slots', 'the difference is not the cache', donation=donation(
        3 * LAYER + 14_000_000)),
    # times
    *both('exchanged', 't0 and t1 are exchanged',
          copied=fitted(lambda t0, t1: (t1, t0))),
    *both('through the origin', 'goes through the origin',
          copied=fitted(through_origin)),
    *both('two points', 'first and the last point',
          copied=fitted(through_ends)),
    *both('milliseconds', 'the line is in milliseconds',
          copied=fitted(lambda t0, t1: (1e3 * t0, 1e3 * t1))),
    *both('logarithm', 'logarithm of b', copied=fitted(
        lambda t0, t1: np.polyfit(np.log([*SECONDS]), [*SECONDS.values()], 1
                                  )[::-1])),
    *both('another line', 'not the line of least squares',
          copied=fitted(lambda t0, t1: (2 * t0, t1 / 2))),
    *both('noise', 'too noisy', copied=line(NOISE)),
    *both('no growth', 'more sequences take no longer',
          copied=line({1: 0.05, 2: 0.0501, 4: 0.0499, 8: 0.0498})),
    *both('a time of zero', 'a time is to be positive',
          copied=line({1: 0.0, 2: 0.07, 4: 0.1})),
    *both('an empty batch', 'a number of sequences is to be',
          copied=line({0: 0.05, 2: 0.07, 4: 0.1})),
    *both('two batches', 'take three batch sizes',
          copied=line({1: 0.05, 8: 0.15})),
    *both('the first fit again', 'the times of the first fit',
          in_place=line(SECONDS)),
    *both('another context', 'other sizes than in the first fit',
          in_place=line(FASTER, context=512)),
    # bytes over bandwidth
    *both('numbers for bytes', 'that counts weights',
          reading=reading(t0=WEIGHTS / 4 / RATE)),
    *both('no embedding', 'the embedding is missing',
          reading=reading(t0=(WEIGHTS - 4 * 50257 * 768) / RATE)),
    *both('cache in both', 'the cache is in t0',
          reading=reading(t0=(WEIGHTS + ONE) / RATE)),
    *both('K without V', 'half of it: keys',
          reading=reading(t1=ONE / 2 / RATE)),
    *both('per layer', 'the cache of one block',
          reading=reading(t1=ONE / 12 / RATE)),
    *both('weights for each', 'read once for all sequences; what is',
          reading=reading(t1=WEIGHTS / RATE)),
    *both('multiplied', 'bytes over bytes per second',
          reading=reading(t0=WEIGHTS * RATE)),
    *both('milliseconds of bytes', 'that is in milliseconds; all',
          reading=reading(t0=1e3 * WEIGHTS / RATE, t1=1e3 * ONE / RATE)),
    *both('half done', 'still to do: t1', reading=reading(t1=...)),
]
