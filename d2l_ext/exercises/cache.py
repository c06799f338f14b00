"""Exercises of lesson 01: what generation costs, and what a cache may forget.

References are written out here, apart from d2l_ext.formulas and from the
solutions.
"""

import numpy as np

from .answers import NotYet, function, number
from .diagnose import formulas, numbers
from .engine import Exercise, Part

# --- generation-cost ---------------------------------------------------------

NAMES = ('N', 'P', 'T')
P, T = 3584, 256


def naive(N, P, T):
    """Token by token: the i-th pass reads the prompt and i - 1 new ones."""
    return sum(2 * N * (P + i) for i in range(T))


def cached(N, P, T):
    """The prompt, then every written token but the last."""
    return 2 * N * P + sum(2 * N for _ in range(T - 1))


WRONG_NAIVE = [
    (cached, 'that reads each token once, which is what the cache does'),
    (lambda N, P, T: naive(N, P, T) + 2 * N * T,
     'each pass is one token too long: the first token is written after a '
     'pass over the prompt alone'),
    (lambda N, P, T: naive(N, P, T) / 2,
     'half of it: a multiplication and an addition for each parameter'),
    (lambda N, P, T: 2 * N * P * T,
     'every pass has the length of the prompt here, but the history grows by '
     'what was written'),
    (lambda N, P, T: naive(N, 0, T),
     'the prompt is missing: it is part of the history in each pass'),
    (lambda N, P, T: naive(N, 1, T),
     'that starts from one token; the history starts with the whole prompt'),
    (lambda N, P, T: naive(N, 1, P + T),
     'that writes the prompt token by token, too: it is given'),
    (lambda N, P, T: N * T**2,
     'that is the approximation for a long text and no prompt; asked for is '
     'the exact sum'),
    (lambda N, P, T: N * (P + T)**2,
     'that is an approximation, of writing the prompt too; asked for is the '
     'exact sum over the T passes'),
    (lambda N, P, T: naive(N, P, T) / (2 * N),
     'that counts tokens read; asked for are FLOPs'),
]
WRONG_CACHED = [
    (naive, 'that is the naive schedule; which tokens does a cache save from '
            'being read again?'),
    (lambda N, P, T: 2 * N * (P + T),
     'one step too many: which of the tokens written is never fed?'),
    (lambda N, P, T: 2 * N * T,
     'the prefill is missing: the prompt has to be read once'),
    (lambda N, P, T: 2 * N * (T - 1),
     'the prefill is missing: the prompt has to be read once'),
    (lambda N, P, T: 2 * N * (T + 1),
     'the prompt counts as a single token here; it has P of them'),
    (lambda N, P, T: 2 * N * (P + T - 2),
     'one step too few: how many single steps are there after the prefill?'),
    (lambda N, P, T: cached(N, P, T) / 2,
     'half of it: a multiplication and an addition for each parameter'),
    (lambda N, P, T: cached(N, P, T) / (2 * N),
     'that counts tokens read; asked for are FLOPs'),
]


def small():
    return [(5, 3, 4), (7, 2, 2), (11, 6, 3)]


def random_cases():
    rng = np.random.default_rng()
    return [tuple(map(int, rng.integers([1000, 2, 2], [10**9, 5000, 300])))
            for _ in range(6)]


def edges():
    """One new token, a prompt of one token, both."""
    return [(13, 5, 1), (13, 1, 4), (13, 1, 1)]


def counted(right, wrongs):
    return tuple(formulas(cases, right, wrongs, names=NAMES)
                 for cases in (small, random_cases, edges))


def first_token_is_equal(call, values):
    """A property: a cache saves nothing on the first token."""
    other = values.get('naive_flops')
    if other and callable(other):
        try:
            a, b = call(17, 19, 1).value, other(17, 19, 1).value
        except NotYet:
            return  # said where it belongs
        if a != b and b == naive(17, 19, 1):
            raise NotYet('for a single new token both schedules read the '
                         'prompt once and no more, so both cost the same; '
                         'here they do not')


COARSE = ('nearly, but rounded: one digit more shows whether the last token '
          'was counted rightly')
RATIO = naive(1, P, T) / cached(1, P, T)
GENERATION_COST = Exercise(
    id='generation-cost', lesson='01_cache', title='What Generation Costs',
    kinds=('paper', 'code'), minutes=20,
    hints=(
        'Play it through for a prompt of three tokens and two new ones: which '
        'tokens go into each pass? The last token is written, and nobody asks '
        'what follows it.',
        'The lengths of the naive passes are consecutive numbers, from the '
        'prompt on. The cached schedule reads each token once, except for '
        'one that it never reads.',
        'For the second half work out two times for each pass: its FLOPs over '
        '83 TFLOP/s, and its bytes of weights over 1 TB/s. The longer one '
        'counts; it is not the same one for both passes.'),
    parts=(
        Part('naive_flops', function(', '.join(NAMES), number('FLOPs')),
             counted(naive, WRONG_NAIVE),
             'For no prompt to speak of it is the N T² of the lesson; with a '
             'long prompt and few new tokens it is nearly 2 N P T.'),
        Part('cached_flops', function(', '.join(NAMES), number('FLOPs')),
             (*counted(cached, WRONG_CACHED)[:1], first_token_is_equal,
              *counted(cached, WRONG_CACHED)[1:]),
             'As many tokens are read as the text is long, less one: nothing '
             'that is to know the whole history could read fewer.'),
        Part('ratio', number('times'), (numbers(RATIO, [
            (1 / RATIO, 'that is the cached cost over the naive one, upside '
                        'down'),
            (naive(1, P, T) / (2 * (P + T)),
             'one token too many in the cached schedule: the last is never '
             'fed'),
            (naive(1, P, T) / (2 * (T - 1)),
             'the cached schedule has to read the prompt as well'),
            (naive(1, P, T) / (2 * T),
             'the cached schedule has to read the prompt as well'),
            (T, 'as many times as there are new tokens: that takes every '
                'pass to be as long as all that the cache reads, nearly so '
                'but not exactly'),
            ((P + T) / 1, 'that compares one late pass with one step; asked '
                          'for is the whole text, the prefill included'),
            (round(RATIO, -1), COARSE), (int(RATIO), COARSE),
            (int(RATIO) + 1, COARSE),
        ], rtol=1e-4),),
             'Nearly one for each new token, since the prompt is long: the '
             'cached schedule costs hardly more than a single naive pass.'),
        Part('step_gain', number('times'), (numbers(P / 2 / 83, [
            (P, 'that is the ratio of the FLOPs. It would be the gain if both '
                'passes ran at the same rate; which of them waits for bytes?'),
            (P / 2, 'that is the intensity of the long pass; a step is not as '
                    'fast as its FLOPs allow, but as its bytes do'),
            (P / 83, 'twice of it: a parameter of fp32 has four bytes, and '
                     'takes two FLOPs for each token'),
            (P / 4 / 83, 'half of it: two FLOPs for each parameter and token'),
            (1, 'the passes read the same bytes, but the long one does not '
                'wait for them: its arithmetic takes longer'),
            (83, 'that is the ridge of the card'),
            (166, 'that is how many tokens a pass may read in the time of '
                  'one; how much longer does one over 3584 tokens take?'),
            (83 * 2 / P, 'upside down: naive over cached'),
            (RATIO, 'that is the ratio of the FLOPs of the whole text'),
        ], rtol=2e-2),),
             'A step does thousands of times fewer FLOPs at half a FLOP per '
             'byte, and gains about twentyfold. The book measured four- to '
             'fivefold end to end: a step does not reach even the rate that '
             'its bytes allow, as the lesson on the roofline shows.'),
    ))
