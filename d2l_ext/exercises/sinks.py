"""Exercises of lesson 06: what a sink is, and a cache that rolls.

References are in float64 and apart from the lesson and the solutions. What
is measured on a checkpoint or a trained model is only held to its form and
to itself.

T tokens, d head width, s sinks, w tokens of the window
"""

import math
from collections.abc import Mapping

import numpy as np

from .answers import (
    NotYet,
    Untouched,
    array,
    function,
    number,
    short,
    table,
)
from .diagnose import is_close, tables
from .engine import Exercise, Part
from .latent import apart, normal, pair, softmax

FIRST = 64  # queries from this position on are looked at


# --- A sink in the denominator -----------------------------------------------


def sink_cases():
    """Scores (T,), values (T, d), a sink; sizes are drawn anew."""
    rng = np.random.default_rng()
    drawn = map(int, rng.choice([5, 7, 11, 13], 2, replace=False))
    for T, d, sink in ((3, 2, 0.5), (*drawn, float(rng.normal())),
                       (1, 4, -2.0), (6, 3, 4.0)):
        yield 2 * normal(T), normal(T, d), sink


def with_sink(scores, sink, plus=None):
    """Weights of the real tokens; plus: what is added to the denominator."""
    e = np.exp(scores.astype(np.float64))
    return e / (e.sum() + (np.exp(sink) if plus is None else plus(sink)))


def check_denominator(call, values):
    cases, found = list(sink_cases()), []
    for scores, V, sink in cases:
        weights, out = call(scores, V, sink)
        T, d = V.shape
        if weights.shape == (T + 1,):
            raise NotYet('there is a weight for the sink too; asked for are '
                         f'those of the {T} real tokens')
        if (weights.shape, out.shape) != ((T,), (d,)):
            raise NotYet(f'shapes {weights.shape} and {out.shape}, expected '
                         f'{(T,)} and {(d,)}')
        found.append((weights, out))
    weights, outs = map(np.concatenate, zip(*found, strict=True))

    def real(plus=None):  # of all cases: in one a mistake may hit by chance
        return [with_sink(scores, sink, plus) for scores, _, sink in cases]
    right = real()
    for plus, message in (
            (lambda s: 0, 'the weights sum to one, as if there were no sink'),
            (lambda s: s, 'the sink is added to the denominator as it is; it '
                          'is a logit, as the scores are'),
            (lambda s: 1, 'one is added to the denominator whatever the '
                          'logit of the sink; that is a logit of zero')):
        if not apart(weights, np.concatenate(real(plus))):
            raise NotYet(message)
    if apart(weights, np.concatenate(right)):
        raise NotYet('these are not the exponentials over their sum and that '
                     'of the sink')
    sums = [a @ V for a, (_, V, _) in zip(right, cases, strict=True)]
    if apart(outs, np.concatenate(sums)):
        rest = [out / a.sum() for out, a in zip(sums, right, strict=True)]
        raise NotYet('the output is scaled up again by what the weights sum '
                     'to; then the sink has no effect'
                     if not apart(outs, np.concatenate(rest)) else
                     'the weights are right; the output is not their sum of '
                     'values')


def check_as_key(call, values):
    for scores, V, sink in sink_cases():
        more, rows = call(scores, V, sink)
        T, d = V.shape
        if (more.shape, rows.shape) != ((T + 1,), (T + 1, d)):
            raise NotYet(f'shapes {more.shape} and {rows.shape}: one key more '
                         f'than {T} has one score and one value more')
        at = [i for i in range(T + 1) if not apart(
            np.delete(rows, i, 0), V.astype(float)) and not apart(
            np.delete(more, i), scores.astype(float))]
        if not at:
            raise NotYet('the scores and values of the real tokens have to '
                         'stay as they are, in their order, beside the new '
                         'one')
        i = next((i for i in at if not apart(rows[i], np.zeros(d))), at[0])
        if apart(rows[i], np.zeros(d)):
            raise NotYet('the value of the extra key adds something to the '
                         'output; what adds nothing?')
        if not apart(np.asarray(more[i]), np.asarray(0.0)) and abs(
                sink) > 0.01:
            raise NotYet('the score of the extra key is zero; so is its '
                         'value, but the score is what the sink has')
        if apart(softmax(more) @ rows, with_sink(scores, sink) @ V):
            raise NotYet('plain attention to these keys is not attention '
                         'with this sink: the score of the extra key has to '
                         'put the same into the denominator')


SINK_WRONG = [  # of the sum e of exponentials and the total
    (lambda e, total: math.log(e * total / (1 - total)),
     'that logit gives the sink what was to be left to the real tokens'),
    (lambda e, total: e * (1 - total) / total,
     'that is what has to stand in the denominator; the sink is a logit'),
    (lambda e, total: math.log((1 - total) / total),
     'that would be for scores whose exponentials sum to one; they enter '
     'too'),
    (lambda e, total: math.log(e * (1 - total)),
     'the share of the sink is a share of the whole denominator, in which it '
     'stands itself'),
]


def check_sink_for(call, values):
    rng, cases, given = np.random.default_rng(), [], []
    for total in (0.5, 0.9, float(rng.uniform(0.05, 0.95)), 1e-3):
        scores = normal(int(rng.integers(2, 9)))
        cases.append((np.exp(scores.astype(np.float64)).sum(), total))
        given.append(call(scores, total))

    def agrees(formula):  # in all cases: in one it may be by chance
        return all(is_close(x, y := formula(*case), 1e-3)
                   or abs(x.value - y) < 1e-3
                   for x, case in zip(given, cases, strict=True))
    if agrees(lambda e, total: math.log(e * (1 - total) / total)):
        return
    for wrong, message in SINK_WRONG:
        if agrees(wrong):
            raise NotYet(message)
    raise NotYet('with that sink the real weights sum to something else; '
                 'solve the formula of their sum for the sink')


BOUNDS = {'below': 0, 'above': 1}
TOTALS = tables(BOUNDS.get, [
    ({'below': 1, 'above': 1}.get,
     'that is without a sink; what happens to the sum as the logit of the '
     'sink grows?'),
    ({'below': 0.5, 'above': 1}.get,
     'the logit of the sink may be any number, far larger than the scores '
     'too'),
    ({'below': 0, 'above': 0.5}.get,
     'the logit of the sink may also lie far below the scores: what is then '
     'left of it in the denominator?'),
    ({'below': 0, 'above': math.inf}.get, 'a share of the denominator'),
    ({'below': -1, 'above': 1}.get,
     'exponentials are positive, so a sum of them over a sum is too'),
])


# --- What a real sink adds ---------------------------------------------------


def shares(A, V, first=FIRST, others=1, with_weight=True, order='mean of'):
    """(|v_0| / mean |v_j|, mean |A_t0 v_0| / |o_t|) of one head."""
    A, V = A.astype(np.float64), V.astype(np.float64)
    norms = np.linalg.norm(V, axis=1)
    out = np.linalg.norm(A @ V, axis=1)[first:]
    part = (A[first:, 0] if with_weight else 1) * norms[0]
    ratio = ((part / out).mean() if order == 'mean of'
             else np.mean(part) / out.mean())
    return np.array([norms[0] / norms[others:].mean(), ratio])


def share_cases():
    """Weights (T, T) of a head with a sink, values (T, d)."""
    rng = np.random.default_rng()
    for T, d in ((70, 4), (int(rng.integers(66, 90)), 7), (81, 5)):
        A = np.exp(2 * rng.standard_normal((T, T))) * np.tri(T)
        A[:, 0] += rng.uniform(0, 400, T)
        A = (A / A.sum(1, keepdims=True)).astype(np.float32)
        V = normal(T, d)
        V[0] *= 0.3
        yield A, V


def check_shares(call, values):
    cases = list(share_cases())
    found = np.array([[x.value for x in call(A, V)] for A, V in cases])

    def agrees(**change):  # in all cases: in one it may be by chance
        return not apart(found, np.array([shares(A, V, **change)
                                          for A, V in cases]))
    if agrees():
        return
    for change, message in (
            (dict(first=0), 'all queries are counted; those before 64 have '
                            'few tokens to look at'),
            (dict(first=FIRST + 1), 'the queries begin one too late: '
                                    'position 64 is the first'),
            (dict(with_weight=False),
             'the norm of v_0 is there without its weight; what is added to '
             'the output is the product of both'),
            (dict(order='of means'),
             'that is the ratio of two means; asked for is the mean of the '
             'ratios of each query'),
            (dict(others=0),
             'the mean of the norms is that of the other tokens, without '
             'token 0')):
        if agrees(**change):
            raise NotYet(message)
    right = np.array([shares(A, V) for A, V in cases])
    if not apart(found * right, np.ones_like(right)):
        raise NotYet('upside down: token 0 stands above')
    off = (np.abs(found - right) > 1e-3).any(0)
    wrong = [name for name, x in zip(('value', 'output'), off, strict=True)
             if x]
    raise NotYet(f'the share of the {wrong[0]} is not right; mind what is a '
                 'norm of a sum and what a sum of norms')


def two_numbers(found):
    if found is None:
        raise NotYet('None came; asked for are two numbers. Does a `return` '
                     'miss?')
    if getattr(found, 'shape', None) == (2,):  # a framework's array
        found = array(found).tolist()
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise NotYet(f'{short(found)} is no pair of numbers')
    if ... in found:
        raise NotYet('one of the two numbers is still to do')
    return [*map(number(), found)]


def lists(*names, filled_in=()):
    """The form of {name: a number for each block}.

    filled_in: names that come with their list; Untouched while the others
    are `...` or empty.
    """
    def read(answer):
        if answer is ...:
            raise Untouched
        if not isinstance(answer, Mapping):
            raise NotYet(f'{short(answer)} is no dict; asked for is one list '
                         'for each of ' + ', '.join(map(repr, names)))
        if missing := [name for name in names if name not in answer]:
            raise NotYet(f'{missing[0]!r} is not there')
        own = [name for name in names if name not in filled_in]
        todo = [name for name in names if answer[name] is ...
                or not np.size(answer[name])]
        if set(todo) >= set(own):
            raise Untouched
        if todo:
            raise NotYet(f'still to do: {", ".join(map(repr, todo))}')
        found = {name: array([x.item() if hasattr(x, 'item') else x
                              for x in answer[name]]) for name in names}
        lengths = {len(x) for x in found.values()}
        if len(lengths) > 1 or any(x.ndim != 1 for x in found.values()):
            raise NotYet('asked for are lists with one number for each '
                         f'block; these have {sorted(lengths)} entries')
        return found
    return read


def check_ratios(found, values):
    value, output = found['value'], found['output']
    blocks = len(values['mass']['from 0']) if 'mass' in values else len(value)
    if len(value) != blocks:
        raise NotYet(f'one number for each block: {blocks}, not {len(value)}')
    if (value <= 0).any() or (output <= 0).any():
        raise NotYet('a norm over a norm is positive in every block')
    if np.allclose(value, output):
        raise NotYet('both lists are the same')
    if np.median(value) > 2:
        raise NotYet('the values of token 0 come out longer than others in '
                     'most blocks; is the ratio upside down?')
    if np.median(output) > 1.5:
        raise NotYet('what token 0 adds comes out longer than the output in '
                     'most blocks; is its weight in it?')
    if output.max() < 0.02:
        raise NotYet('token 0 adds next to nothing in every block, though it '
                     'has much of the weight; is it its weight that was '
                     'taken, at key 0?')


def check_mass(found, values):
    start, later = found['from 0'], found['from 100']
    for name, x in found.items():
        if (x < 0).any() or (x > 1).any():
            raise NotYet(f'{name}: a mean of weights lies between zero and '
                         'one')
    if np.array_equal(start, later):
        raise NotYet('both lists are the same to the last digit; did the '
                     'model read the later passage?')
    if start.max() > 0.2 and later.max() < start.max() / 5:
        raise NotYet('next to nothing is left of the sink. Is it the weight '
                     'on token 100 of the old passage? The later passage is '
                     'to be read on its own, with its first token at '
                     'position 0')


SINK_NOOP = Exercise(
    id='sink-noop', lesson='06_sinks', title='Attending Nowhere',
    kinds=('paper', 'code'), minutes=45,
    hints=(
        'A logit of its own in the denominator: write the softmax over one '
        'more score than there are tokens. Which term of the weighted sum '
        'must then vanish?',
        'The sum of the real weights is a fraction with the same sum above '
        'and, with one term more, below. Call it p, and solve for the term '
        'of the sink.',
        '`watch` has all that the second part needs: weights of each query '
        'head and values of each key-value head. The output of a head is '
        'their product; query head h reads key-value head h // r. For the '
        'third part read the text from its token 100 on.'),
    parts=(
        Part('denominator', function('scores, V, sink', pair(
            'weights', 'an output')), (check_denominator,),
            'A head with such a sink can say less than its values do: the '
            'softmax no longer makes it say something.'),
        Part('as_key', function('scores, V, sink', pair(
            'scores', 'values')), (check_as_key,),
            'So no new kind of attention is needed: a cached row with that '
            'score for every query and nothing in its value does it. How near '
            'token 0 comes to that, the second part measures.'),
        Part('totals', table(tuple(BOUNDS)), (TOTALS,),
             'Both ends are open: with finite logits the real tokens get '
             'something, and never all.'),
        Part('sink_for', function('scores, total', number()),
             (check_sink_for,),
             'Each total between the two ends has exactly one sink, as far '
             'above the log-sum-exp of the scores as the odds are against '
             'them.'),
        Part('shares', function('A, V', two_numbers), (check_shares,),
             'The second ratio is not bounded by one: parts of a sum can '
             'be longer than the sum.'),
        Part('ratios', lists('value', 'output'), (check_ratios,),
             'Compare them with the weights: if the sink added nothing, the '
             'second list would be near zero, however large the weights.'),
        Part('mass', lists('from 0', 'from 100', filled_in=['from 0']),
             (check_mass,),
             'Which token stands first has changed, and what has not? The '
             'answer says whether a sink is a word or a place.'),
    ))


# --- A rolling cache ---------------------------------------------------------


def rolling_cases():
    """s, w, tokens of the prompt, tokens after it."""
    rng = np.random.default_rng()
    s, w = int(rng.integers(1, 4)), int(rng.integers(2, 6))
    return [(2, 3, 4, 5), (s, w, int(rng.integers(1, s + w)), 2 * w + 3),
            (0, 4, 2, 6), (1, 1, 1, 4), (3, 2, 5, 3)]


def check_rolling(call, values):
    for s, w, prompt, new in rolling_cases():
        where = f'for s={s}, w={w}, a prompt of {prompt}, '
        for after, (k, v) in enumerate(call(s, w, prompt, new)):
            t = prompt + after - 1
            place = f'{where}after token {t}: '
            if k is None or v is None:
                raise NotYet(f'{place}there is no cache; does a `return` '
                             'miss, or an entry?')
            if not np.isfinite(k + v).all():
                raise NotYet(f'{place}an empty slot stands where a token '
                             'should be')
            judge_held(place, [round(x) for x in k],
                       [round(-x) for x in v], s, w, t)


def judge_held(place, k, v, s, w, t):
    """k, v: positions held after token t, of keys and of values."""
    if k != v:
        raise NotYet(f'{place}keys and values are not those of the same '
                     'tokens')
    right = {j for j in range(t + 1) if j < s or t - j < w}
    held = set(k)
    if len(held) < len(k):
        raise NotYet(f'{place}a token is there twice')
    if held == right:
        return
    if t == s + w and held == set(range(t + 1)):
        return  # one too many; in which way shows with the next
    if held == set(range(t + 1)):
        raise NotYet(f'{place}nothing has been dropped yet, and the cache '
                     'holds more than sinks and window')
    if t not in held:
        raise NotYet(f'{place}the newest token is not there; it is the one '
                     'that the window ends with')
    if not held >= {j for j in right if j < s}:
        raise NotYet(f'{place}a sink was evicted: the first ones stay, '
                     'whatever leaves')
    if held == right | {t - w}:
        raise NotYet(f'{place}the window is one too wide: the current token '
                     'is one of its w')
    if held == right - {t - w + 1}:
        raise NotYet(f'{place}the window is one too narrow')
    if s and held == {j for j in range(t + 1)
                      if j < s or t - j < w - s}:
        raise NotYet(f'{place}the sinks are counted as part of the window; '
                     'it has w tokens of its own')
    if max(right - held, default=-1) > min(held - right, default=t):
        raise NotYet(f'{place}an older token is there and a newer one is '
                     'not: which row does the new one replace?')
    raise NotYet(f'{place}held are {len(held)} tokens, and not the first s '
                 'and the latest w')


def losses_of(*names):
    """The form of {name: loss}, Untouched while all are `...`."""
    def read(answer):
        found = table(names)(answer)
        if found.missing:
            raise NotYet('still to do: ' + ', '.join(map(repr,
                                                         found.missing)))
        return {name: x.value for name, x in found.given.items()}
    return read


def check_same(found, values):
    mask, cache = found['mask'], found['cache']
    if not 0 < mask < 12:
        raise NotYet('mask: a loss in nats per token lies between zero and '
                     'that of guessing evenly')
    if abs(mask - cache) < 2e-3:
        return
    if abs(math.exp(mask) - cache) < 0.01 * cache:
        raise NotYet('cache: a perplexity here, a loss there')
    raise NotYet('the two differ by more than rounding: either the cache '
                 'holds other rows than the mask shows, or positions begin '
                 'anew where they should go on, or the two means are not '
                 'over the same tokens')


def position_cases():
    rng = np.random.default_rng()
    s, w = int(rng.integers(1, 5)), int(rng.integers(2, 9))
    return [(20, 2, 3), (1, 2, 3), (s + w - 1, s, w), (10 * w, s, w),
            (9, 0, 4), (0, 1, 1)]


def original(t, s, w):
    """Positions in the text of what is held after token t."""
    return np.array([j for j in range(t + 1) if j < s or t - j < w])


def held(t, s, w):
    return np.arange(min(t + 1, s + w))


POSITIONS_WRONG = [
    (original, 'these are the original positions: the offset of the query to '
               'a sink grows with every token'),
    (lambda t, s, w: original(t, s, w) % (s + w),
     'tokens in order must have positions in order: after a wrap the newest '
     'would stand before older ones'),
    (lambda t, s, w: held(t, s, w)[::-1],
     'that is the other way round: the newest comes last'),
    (lambda t, s, w: np.where(held(t, s, w) < s, held(t, s, w),
                              held(t, s, w) - s),
     'the window begins anew at zero, where the sinks stand: two tokens at '
     'one position'),
    (lambda t, s, w: held(t, s, w) + 1,
     'all offsets are right; begin at zero, as the model does'),
    (lambda t, s, w: held(t, s, w) + max(t + 1 - s - w, 0),
     'all offsets are right, but positions grow without end; begin at zero'),
]


def check_positions(call, values):
    cases, found = position_cases(), []
    for t, s, w in cases:
        found.append(call(t, s, w))
        if found[-1].ndim != 1:
            raise NotYet(f'for t={t}, s={s}, w={w}: shape '
                         f'{found[-1].shape}; asked for is a list')
        if found[-1].shape != held(t, s, w).shape:
            raise NotYet(f'for t={t}, s={s}, w={w}: {found[-1].size} '
                         f'positions for the {len(held(t, s, w))} tokens '
                         'that are held')

    def differ(formula):  # the cases in which it is not what was found
        return [i for i, case in enumerate(cases)
                if not np.array_equal(found[i], formula(*case))]
    if not (off := differ(held)):
        return
    t, s, w = cases[off[0]]
    where = f'for t={t}, s={s}, w={w}: '
    for wrong, message in POSITIONS_WRONG:
        if not differ(wrong):  # in one case it may be by chance
            raise NotYet(where + message)
    if np.ptp(found[off[0]]) >= s + w:
        raise NotYet(f'{where}an offset is s + w or more')
    raise NotYet(f'{where}the tokens that are held should stand side by '
                 'side, in their order')


TURNS = {'sink': 1, 'window': 124}
CHECK_TURNS = tables(TURNS.get, [
    ({'sink': 1, 'window': 1}.get,
     'with one position for life its offset to the query would be right '
     'only at first: where does a token stand in the cache when it comes, '
     'and where when it leaves?'),
    ({'sink': 124, 'window': 124}.get,
     'a sink stands at the same place in the cache at every step'),
    ({'sink': 1, 'window': 128}.get,
     'it never stands where the sinks are'),
    ({'sink': 1, 'window': 123}.get,
     'count the place where it comes in and the place from which it leaves: '
     'both belong'),
    ({'sink': 0, 'window': 123}.get,
     'asked for are the different positions, the first one included'),
], where='{}'.format)


def check_stream(found, values):
    for name, loss in found.items():
        if not 0 < loss:
            raise NotYet(f'{name}: a loss is positive')
        if loss > 3.4:
            raise NotYet(f'{name}: worse than guessing evenly among 28 '
                         'characters. A perplexity? Or do queries and keys '
                         'stand at positions that do not belong together?')
    if found['s=4'] == found['s=0'] != round(found['s=4'], 3):
        raise NotYet('s=4 and s=0 agree to the last digit; is it the same '
                     'stream?')
    worse = max(found['s=4'], found['s=0']) - found['recompute']
    if worse > 0.5:
        raise NotYet('the stream is far worse than reading the latest 128 '
                     'anew. Is the query rotated to the place of the newest '
                     'key, and is every key rotated just once?')
    if worse < -0.5:
        raise NotYet('reading the latest 128 anew is far worse than the '
                     'stream; are the losses those of the same characters, '
                     'each predicted from all of its window?')


STREAMING = Exercise(
    id='streaming', lesson='06_sinks', title='A Cache That Rolls',
    kinds=('code', 'extended'), minutes=120,
    hints=(
        'Which rows of a full cache stay, in order: the first s, then all '
        'but the oldest of the window, then the new one. In a buffer '
        'nothing need move: the new row takes the place of the oldest one, '
        'and attention does not ask in which order rows lie, if each key '
        'carries its position.',
        'A key that is stored rotated has its position for good. Stored as '
        'it was projected, it can be rotated at each step to wherever it '
        'stands by then; the query stands where the newest key does.',
        'Set `attention.rope = False` in each block of the trained model '
        'and rotate in the step yourself: all keys as they lie, sinks first, '
        'from position 0 on; the query with an offset. Compare losses of '
        'the same characters, all after the window has filled.'),
    parts=(
        Part('roll', function('s, w, prompt, new', list), (check_rolling,),
             'Nothing in it depends on how much has gone by: memory and time '
             'of a step stay what they are.'),
        Part('cached', losses_of('mask', 'cache'), (check_same,),
             'The mask of the lesson was no approximation of an eviction, it '
             'computes the same; only the cache saves what it hides.'),
        Part('positions', function('t, s, w', array), (check_positions,),
             'However long the stream, the model sees only offsets that it '
             'has seen in training, if s + w is within its context.'),
        Part('turns', table(tuple(TURNS)), (CHECK_TURNS,),
             'So keys are stored as they were before rotation, and rotated '
             'when they are read: a little arithmetic for each cached row '
             'at every step.'),
        Part('stream', losses_of('s=4', 's=0', 'recompute'), (check_stream,),
             'Whatever came out is the answer: one small model and a few '
             'thousand characters. What would have to be repeated before '
             'differences of this size mean something?'),
    ))
