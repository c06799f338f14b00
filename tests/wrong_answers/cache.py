"""Lesson 01."""

from fractions import Fraction

import numpy as np

from . import Wrong


def naive(N, P, T):
    return 2 * N * (T * P + T * (T - 1) // 2)


def cached(N, P, T):
    return 2 * N * (P + T - 1)


RIGHT = {'generation-cost': dict(
    naive_flops=naive, cached_flops=cached, ratio=247.498, step_gain=21.59)}
OTHER = [
    ('generation-cost', 'loops and fractions', dict(
        naive_flops=lambda N, P, T: sum(2 * N * t for t in range(P, P + T)),
        cached_flops=lambda N, P, T: np.int64(2) * N * P + 2 * N * (T - 1),
        ratio=Fraction(950_144, 3839), step_gain=Fraction(3584, 166))),
    ('generation-cost', 'words', dict(
        naive_flops=lambda N, P, T: f'{N * T * (2 * P + T - 1)} FLOPs',
        ratio='247.5 times', step_gain='21.6x')),
]


def wrong(name, says, **answers):
    return Wrong('generation-cost', name, says, answers)


WRONG = [
    wrong('each token once', 'which is what the cache does',
          naive_flops=cached),
    wrong('one pass too long', 'each pass is one token too long',
          naive_flops=lambda N, P, T: naive(N, P + 1, T)),
    wrong('one FLOP', 'half of it', naive_flops=lambda N, P, T:
          N * sum(range(P, P + T))),
    wrong('no growth', 'the history grows',
          naive_flops=lambda N, P, T: 2 * N * P * T),
    wrong('no prompt', 'that starts from one token',
          naive_flops=lambda N, P, T: N * T * (T + 1)),
    wrong('from nothing', 'the prompt is missing',
          naive_flops=lambda N, P, T: N * T * (T - 1)),
    wrong('writes the prompt', 'that writes the prompt token by token',
          naive_flops=lambda N, P, T: N * (P + T) * (P + T + 1)),
    wrong('approximation', 'for a long text and no prompt',
          naive_flops=lambda N, P, T: N * T**2),
    wrong('tokens', 'that counts tokens read',
          naive_flops=lambda N, P, T: sum(range(P, P + T))),
    wrong('never ends in a number', 'is not a finite number',
          naive_flops=lambda N, P, T: float('inf')),
    wrong('still naive', 'that is the naive schedule', cached_flops=naive),
    wrong('last one fed', 'one step too many',
          cached_flops=lambda N, P, T: 2 * N * (P + T)),
    wrong('no prefill', 'the prefill is missing',
          cached_flops=lambda N, P, T: 2 * N * T),
    wrong('one too few', 'one step too few',
          cached_flops=lambda N, P, T: 2 * N * (P + T - 2)),
    wrong('prompt as one token', 'the prompt counts as a single token',
          cached_flops=lambda N, P, T: 2 * N * (T + 1)),
    wrong('cached tokens', 'that counts tokens read',
          cached_flops=lambda N, P, T: P + T - 1),
    wrong('upside down', 'upside down', ratio=3839 / 950_144),
    wrong('last one fed in the ratio', 'the last is never fed',
          ratio=950_144 / 3840),
    wrong('no prefill in the ratio', 'has to read the prompt as well',
          ratio=950_144 / 256),
    wrong('rounded', 'nearly, but rounded', ratio=247),
    wrong('T', 'as many times as there are new tokens', ratio=256),
    wrong('rates taken as equal', 'that is the ratio of the FLOPs. It',
          step_gain=3584),
    wrong('an intensity', 'the intensity of the long pass', step_gain=1792),
    wrong('equal bytes', 'does not wait for them', step_gain=1),
    wrong('twice', 'twice of it', step_gain=43.2),
    wrong('tokens for free', 'how many tokens a pass may read',
          step_gain=166),
    wrong('true or false', 'asked for is a number', step_gain=True),
]
