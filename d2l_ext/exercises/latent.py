"""Exercises of lesson 05: attention from latents, and a fixed basis.

References are in float64, one head at a time, with the keys and values that
the student's functions never form.

H heads, d head width, r latent width, R width of the rotary part, S tokens,
N rows that a basis is fitted on, w numbers in a row
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
from .diagnose import numbers, tables
from .engine import Exercise, Part

TOLERANCE = 1e-3  # of outputs of order 1, in fp32
MANY = 37         # tokens, more than any other size


def normal(*shape, seed=None):
    return np.random.default_rng(seed).standard_normal(shape).astype(
        np.float32)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def apart(x, y):
    return x.shape != y.shape or not np.abs(x - y).max() <= TOLERANCE * max(
        1, np.abs(y).max())  # so that nan is apart from everything


# --- From latents alone ------------------------------------------------------


def latent_case(H, d, r, S, seed=None):
    """q (H, d), c (S, r), U_K and U_V (H, r, d)."""
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(np.float32) / n**0.25
                 for shape, n in (((H, d), 1), ((S, r), 1), ((H, r, d), r),
                                  ((H, r, d), r)))


def rotary_case(H, d, r, S, R, seed=None):
    """q, q_R (H, R), c, k_R (S, R), U_K, U_V."""
    q, c, U_K, U_V = latent_case(H, d, r, S, seed)
    return q, normal(H, R, seed=seed), c, normal(S, R, seed=seed), U_K, U_V


def primes(rng, count):
    """Distinct, so that a shape says what it holds; S the largest."""
    drawn = rng.choice([3, 5, 7, 11, 13], count, replace=False)
    return [int(x) for x in drawn]


def same_width():
    """d = r, where a transposed matrix still fits."""
    return [latent_case(2, 4, 4, 3, seed=1)]


def any_width():
    rng = np.random.default_rng()
    return [latent_case(*primes(rng, 3), MANY), latent_case(2, 6, 4, 1),
            latent_case(1, 4, 9, 5)]


def same_width_rotary():
    return [rotary_case(2, 4, 4, 3, 6, seed=1)]


def any_width_rotary():
    rng = np.random.default_rng()
    H, d, r, R = primes(rng, 4)
    return [rotary_case(H, d, r, MANY, R), rotary_case(2, 6, 4, 1, 2)]


def explicit(q, c, U_K, U_V, q_R=None, k_R=None, scale=None, key=None,
             value=None, late=False, rotary=lambda s: s, head=lambda h: h):
    """Scores (H, S) and outputs (H, d); the arguments after k_R set it wrong.

    scale: of d, r, R; key, value: the matrix that makes keys and values;
    late: the rotary part is added to the weights; rotary: what becomes of
    its scores; head: whose matrices a head uses.
    """
    q, c, U_K, U_V = (x.astype(np.float64) for x in (q, c, U_K, U_V))
    (H, d), (S, r) = q.shape, c.shape
    R = 0 if q_R is None else q_R.shape[1]
    factor = (d + R)**-0.5 if scale is None else scale(d, r, R)
    scores, outs = np.zeros((H, S)), np.zeros((H, d))
    for h in range(H):
        g = head(h)
        K = c @ (U_K[g] if key is None else key(U_K[g], U_V[g]))   # (S, d)
        V = c @ (U_V[g] if value is None else value(U_K[g], U_V[g]))
        extra = 0
        if R:
            extra = rotary(k_R.astype(np.float64) @ q_R[h]) * factor
        score = K @ q[h] * factor + (0 if late else extra)
        weight = softmax(score) + (softmax(np.zeros(S) + extra) if late
                                   else 0)
        scores[h], outs[h] = score, weight @ V
    return scores, outs


BOTH_WRONG = [
    (dict(scale=lambda d, r, R: (r + R)**-0.5),
     'the scores are scaled by the width of the latent: the product is the '
     'one of queries and keys, whose width is what counts, however it is '
     'worked out'),
    (dict(scale=lambda d, r, R: 1.0), 'the scores are not scaled'),
    (dict(key=lambda K, V: K.T),
     'U_K is applied from its other side, transposed: which of its two axes '
     'meets the query, and which the latent?'),
    (dict(value=lambda K, V: V.T),
     'U_V is applied from its other side, transposed: which of its two axes '
     'meets the mean latent, and which is left?'),
    (dict(key=lambda K, V: np.eye(len(K))),
     'the query meets the latents as it is: U_K is missing, which stands '
     'between the two'),
    (dict(value=lambda K, V: np.eye(len(K))),
     'the output is a mean of latents as they are: U_V is missing'),
    (dict(value=lambda K, V: K),
     'values are made with U_K here; they have a matrix of their own'),
    (dict(key=lambda K, V: V),
     'keys are made with U_V here; they have a matrix of their own'),
    (dict(head=lambda h: 0),
     'all heads use the matrices of the first one'),
]
ROTARY_WRONG = [
    (dict(scale=lambda d, r, R: d**-0.5),
     'the scale is that of the part without rotation; a key now has the '
     'width of both parts together'),
    (dict(scale=lambda d, r, R: R**-0.5),
     'the scale is that of the rotary part alone; a key has the width of '
     'both parts together'),
    (dict(rotary=lambda s: 0 * s), 'the rotary part of the scores is missing'),
    (dict(late=True),
     'the two parts are added after the softmax; they are two pieces of one '
     'score, which is a sum before it'),
    (None,  # `each_scaled`
     'each part has a scale of its own here; the score is one product of '
     'long vectors, with one scale'),
]


def each_scaled(q, q_R, c, k_R, U_K, U_V):
    d, R = q.shape[1], q_R.shape[1]
    return explicit(q, c, U_K, U_V, q_R, k_R, lambda *_: d**-0.5,
                    rotary=lambda s: s * d**0.5 * R**-0.5)


def read_pair(found):
    """The form of what `try_latents` returns: scores, outputs, shapes."""
    result, shapes = found
    return *pair('scores', 'outputs')(result), shapes


def pair(*names):
    """The form of a function's result that is a pair of arrays."""
    wanted = ' and '.join(names)

    def read(found):
        if found is None:
            raise NotYet(f'None came; asked for are {wanted}. Does a '
                         '`return` miss?')
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise NotYet(f'{short(found)} is no pair; asked for are {wanted}')
        if todo := [name for name, x in zip(names, found, strict=True)
                    if x is ...]:
            raise NotYet(f'still to do: {" and ".join(todo)}')
        return tuple(map(array, found))
    return read


def place(H, d, r, S):
    return f'for H={H}, d={d}, r={r}, S={S}: '


def check_latents(case, reference, wrongs, found, q, c):
    """A pair against the reference; wrongs: [(function, message)]."""
    scores, out, shapes = found
    (H, d), (S, r) = q.shape, c.shape
    if out.shape == (H, r) != (H, d):
        raise NotYet(place(H, d, r, S) + 'the outputs still are latents, r '
                     'numbers for each head; one more matrix takes them to '
                     'the width of a head')
    for name, x, shape in (('scores', scores, (H, S)),
                           ('outputs', out, (H, d))):
        if x.shape != shape:
            raise NotYet(f'{place(H, d, r, S)}the {name} have shape '
                         f'{x.shape}, expected {shape}')
    right = reference(*case)
    for wrong, message in wrongs:
        values = wrong(*case)
        if (values and apart(np.hstack(values), np.hstack(right))
                and not apart(np.hstack((scores, out)), np.hstack(values))):
            raise NotYet(message)
    if apart(scores, right[0]):
        total = softmax(right[0])
        if not apart(scores, total):
            raise NotYet('the weights came where scores are asked for: those '
                         'are what the softmax gets')
        raise NotYet(place(H, d, r, S) + 'the scores are not those of keys '
                     'that are made first; write a score as a product of '
                     'three, and move the brackets')
    if apart(out, right[1]):
        raise NotYet(place(H, d, r, S) + 'the scores are right, the outputs '
                     'are not: a weighted sum of products, from which one '
                     'factor can be drawn out')
    # in the cases of this S sizes are distinct: a shape says what it holds
    if S == MANY and any({S, d} <= set(shape) or {S, H * d} <= set(shape)
                       for shape in shapes):
        raise NotYet(place(H, d, r, S) + 'the numbers are right, but keys or '
                     'values of the cached tokens are formed on the way: '
                     'there is an array with S and d among its axes. Which '
                     'product has to come first so that it never arises?')


def fits(change, U):
    """Whether a wrong matrix has the shape to be used at all."""
    return all(np.shape(f(U, U)) == U.shape for name, f in change.items()
               if name in ('key', 'value'))


def with_rotary(q, q_R, c, k_R, U_K, U_V, **change):
    return (explicit(q, c, U_K, U_V, q_R, k_R, **change)
            if fits(change, U_K[0]) else None)


def without(q, c, U_K, U_V, **change):
    return (explicit(q, c, U_K, U_V, **change) if fits(change, U_K[0])
            else None)


def from_latents(cases):
    def check(call, values):
        for case in cases():
            check_latents(case, explicit, [
                (lambda *a, change=change: without(*a, **change), message)
                for change, message in BOTH_WRONG], call(*case), case[0],
                case[1])
    return check


def from_both(cases):
    wrongs = [(each_scaled, ROTARY_WRONG[-1][1])] + [
        (lambda *a, change=change: with_rotary(*a, **change), message)
        for change, message in ROTARY_WRONG[:-1] + BOTH_WRONG]

    def check(call, values):
        for case in cases():
            check_latents(case, with_rotary, wrongs, call(*case), case[0],
                          case[2])
    return check


# --- The numbers of DeepSeek-V2 ---------------------------------------------

KINDS = 'MHA', 'MLA'
HEADS, WIDTH, LATENT, ROTARY = 128, 128, 512, 64


def elements(kind):
    return (2 * HEADS * WIDTH if kind == 'MHA' else LATENT + ROTARY)


def flops(kind):
    """Multiplications and additions of scores and of the weighted sum."""
    if kind == 'MHA':
        return HEADS * (2 * WIDTH + 2 * WIDTH)
    return HEADS * (2 * (LATENT + ROTARY) + 2 * LATENT)


def chosen(**values):
    """A wrong formula that is right for the kinds that are not given."""
    return lambda right: lambda kind: values.get(kind, right(kind))


ELEMENTS = tables(elements, [
    (chosen(MHA=HEADS * WIDTH)(elements),
     'a token leaves a key *and* a value for each head'),
    (chosen(MLA=LATENT)(elements),
     'the rotary part of the key is missing: it is cached beside the latent'),
    (chosen(MLA=2 * LATENT + ROTARY)(elements),
     'the latent is there once: keys and values are made from the same one'),
    (chosen(MLA=2 * (LATENT + ROTARY))(elements),
     'the latent is there once, and so is the rotary part, which only keys '
     'have'),
    (chosen(MLA=LATENT + HEADS * ROTARY)(elements),
     'the rotary part of the key is one for all heads'),
    (chosen(MLA=HEADS * (LATENT + ROTARY))(elements),
     'latent and rotary part are one for all heads; nothing is cached for '
     'each'),
    (chosen(MHA=2 * WIDTH)(elements),
     'that is one head; each has a key and a value of its own'),
], where='{}'.format)

FLOPS = tables(flops, [
    (lambda kind: flops(kind) / 2,
     'half of it: a multiplication with its addition is two FLOPs'),
    (chosen(MHA=2 * HEADS * WIDTH)(flops),
     'the scores are there, the weighted sum is not, or a multiplication '
     'with its addition is counted once'),
    (chosen(MLA=HEADS * 2 * (LATENT + ROTARY))(flops),
     'the scores are there; the weighted sum over latents is missing'),
    (chosen(MLA=HEADS * 4 * LATENT)(flops),
     'the product with the rotary part of the key is missing in the scores'),
    (chosen(MLA=HEADS * 4 * (LATENT + ROTARY))(flops),
     'the weighted sum is over latents alone: the rotary part belongs to '
     'keys, and values have none'),
    (chosen(MLA=2 * (LATENT + ROTARY) + 2 * LATENT)(flops),
     'that is one head: the latent is shared, the work is not'),
    (chosen(MLA=HEADS * (4 * WIDTH + 2 * ROTARY))(flops),
     'that is with keys of head width, as if they were there: folded, each '
     'query meets the whole latent'),
    (chosen(MLA=HEADS * (4 * WIDTH + 2 * ROTARY)
            + 2 * 2 * LATENT * HEADS * WIDTH)(flops),
     'that is with keys and values made anew from each latent, which folding '
     'is to avoid'),
], where='{}'.format)

MATCHING = numbers(elements('MLA') / (2 * WIDTH), [
    (elements('MLA') / WIDTH,
     'a key-value head caches a key *and* a value'),
    (LATENT / (2 * WIDTH), 'either the rotary part is missing in what MLA '
     'caches, or this is rounded; a fraction of a head is an answer here'),
    (elements('MHA') / elements('MLA'),
     'that is by how much MLA caches less; asked for are heads that would '
     'cache as much as it does'),
    (3, 'it need not be a whole number'),
])

PER_ELEMENT = tables(lambda kind: flops(kind) / elements(kind), [
    (lambda kind: elements(kind) / flops(kind), 'upside down: FLOPs for each '
     'element that is read, so FLOPs stand above'),
    (lambda kind: flops(kind) / elements(kind) / 2,
     'half of it: per element, not per byte of a 16-bit number; and a '
     'multiplication with its addition is two FLOPs'),
    (lambda kind: flops(kind) / elements('MHA'),
     'MLA\'s FLOPs are divided by the elements of MHA'),
], rtol=5e-3, where='{}'.format, after=None)

STEPS = {'rotated': 1000, 'separate': 1}
FOLDED = tables(STEPS.get, [
    ({'rotated': 1, 'separate': 1}.get,
     'between the query and U_K there would stand a rotation by the distance '
     'of the two tokens: is it the same for all cached tokens, and can it be '
     'moved past U_K?'),
    ({'rotated': 1000, 'separate': 1000}.get,
     'the rotary part has a product of its own; what is folded meets latents '
     'that nothing has turned'),
    ({'rotated': 1000, 'separate': 2}.get,
     'the rotary part of the query is not folded with anything, and it has '
     'not the width of a latent'),
    ({'rotated': 2, 'separate': 1}.get,
     'two for two: is one rotation enough for all the tokens that lie at '
     'different distances?'),
    ({'rotated': 999, 'separate': 1}.get,
     'the current token is among those cached here, at distance zero'),
], where='{}'.format)


ABSORBED = Exercise(
    id='absorbed', lesson='05_low_rank', title='Attention from Latents Alone',
    kinds=('paper', 'code'), minutes=60,
    hints=(
        'Write one score with all its factors: a row vector, a matrix, a '
        'column vector. Products may be bracketed in two ways. Which of them '
        'has no key of a cached token in it? The output is a weighted sum of '
        'products that all share one factor.',
        'Put a rotation for each position into the same product. It stands '
        'between the two matrices that you folded, and depends on the '
        'distance between query and token. Then see what a second, short '
        'product adds to the score, if the vectors of both are laid end to '
        'end.',
        'For the FLOPs of one head and one cached token count the numbers '
        'that are multiplied in a score, then those in the weighted sum. In '
        'the folded step a head is as wide as what it reads. A '
        'multiplication and its addition are two.'),
    parts=(
        Part('latent', function('q, c, U_K, U_V', read_pair),
             (from_latents(same_width), from_latents(any_width)),
             'Keys and values never existed: each head asks with a query as '
             'wide as a latent, so the latents play the part of a single '
             'key-value head that all share.'),
        Part('rotary', function('q, q_R, c, k_R, U_K, U_V', read_pair),
             (from_both(same_width_rotary), from_both(any_width_rotary)),
             'The sum of two products is one product of longer vectors; so '
             'this still is multi-query attention, with a key of r + R '
             'numbers.'),
        Part('queries', table(tuple(STEPS)), (FOLDED,),
             'A matrix with rotation between its factors would have to be '
             'folded anew for each distance, which costs more than the keys '
             'did; kept apart, position costs one short product.'),
        Part('elements', table(KINDS), (ELEMENTS,),
             'A token leaves less than a fiftieth, and nothing of it belongs '
             'to a head.'),
        Part('flops', table(KINDS, 'FLOPs'), (FLOPS,),
             'Folding is not cheaper to compute, it takes more than four '
             'times as many FLOPs for a cached token; it is cheaper to '
             'read.'),
        Part('heads', number(), (MATCHING,),
             'Grouped heads that cached as little would be two or so for 128 '
             'query heads. MLA keeps every head\'s own keys and values, as '
             'far as r numbers can tell them apart.'),
        Part('per_element', table(KINDS, 'FLOPs'), (PER_ELEMENT,),
             'In 16 bits that is one FLOP per byte without sharing, far below '
             'the ridge of any accelerator, and some 240 with MLA, near it: '
             'reading the cache and computing with it take about as long. A '
             'larger batch cannot do that for MHA, as each sequence has a '
             'cache of its own.'),
    ))


# --- A basis that is fixed beforehand ----------------------------------------


def right_vectors(M):
    """Right singular vectors (w, w) by falling singular value."""
    values, vectors = np.linalg.eigh(M.astype(np.float64).T @ M)
    return vectors[:, np.argsort(-values)]


def fit_cases():
    """Matrices with a clear order of directions, and a mean."""
    rng = np.random.default_rng()
    for N, w, r in ((9, 5, 2), (int(rng.integers(20, 40)), 7, 3), (11, 6, 1),
                    (12, 4, 4)):
        spread = 3.0 * 0.6**np.arange(w)
        turned = np.linalg.qr(rng.standard_normal((w, w)))[0]
        M = (rng.standard_normal((N, w)) * spread) @ turned + 1.5
        yield M.astype(np.float32), r


def check_basis(call, values):
    """Orthonormal columns, that span the leading right directions."""
    for fit, r in fit_cases():
        found, (N, w) = call(fit, r), fit.shape
        where = f'for {N} rows of {w} numbers and r={r}: '
        if found.shape == (r, w) != (w, r):
            raise NotYet(f'{where}the vectors are the rows of what came; '
                         'asked for are columns')
        if found.shape == (N, r):
            raise NotYet(where + 'there is an entry for each token: these '
                         'are left singular vectors. Another passage has '
                         'other tokens, what it shares are directions')
        if found.shape == (w, r + 1):
            raise NotYet(where + 'one column too many')
        if found.shape == (N, w):
            raise NotYet(where + 'a matrix as large as the fitted one came: '
                         'the rows, approximated. Asked for are the '
                         'directions that another passage can be put on')
        if found.shape != (w, r):
            raise NotYet(f'{where}shape {found.shape}, expected {(w, r)}')
        if apart(found.T @ found, np.eye(r)):
            raise NotYet(where + 'the columns are not orthonormal; are they '
                         'multiplied by the singular values?')
        V = right_vectors(fit)
        span = found @ found.T
        if not apart(span, V[:, :r] @ V[:, :r].T):
            continue
        centred = right_vectors(fit - fit.mean(0))[:, :r]
        if not apart(span, centred @ centred.T):
            raise NotYet(where + 'the mean was taken off before (that is '
                         'principal components); what a projection has to '
                         'carry are the rows as they are')
        if not apart(span, V[:, -r:] @ V[:, -r:].T):
            raise NotYet(where + 'these are the directions that carry least: '
                         'in which order do they come?')
        raise NotYet(where + 'the columns are orthonormal, but they are not '
                     'the directions that carry most of the rows; a matrix '
                     'of vectors comes transposed from many libraries')


def check_project(call, values):
    rng = np.random.default_rng()
    for T, w, r in ((6, 5, 2), (int(rng.integers(2, 9)), 7, 3), (1, 4, 1)):
        M = normal(T, w)
        V = np.linalg.qr(rng.standard_normal((w, r)))[0].astype(np.float32)
        found, where = call(M, V), f'for {T} rows of {w} numbers and r={r}: '
        if found.shape == (T, r) != (T, w):
            raise NotYet(where + 'these are the coordinates, r numbers for a '
                         'token; attention reads rows of the old width')
        if found.shape != (T, w):
            raise NotYet(f'{where}shape {found.shape}, expected {(T, w)}')
        if not apart(found, M.astype(np.float64) @ V @ V.T):
            continue
        own = right_vectors(M)[:, :r]
        if not apart(found, M @ own @ own.T):
            raise NotYet(where + 'the rows are put on their own best '
                         'directions, which is the oracle again; use the '
                         'ones that came as V')
        if not apart(found, M - M.astype(np.float64) @ V @ V.T):
            raise NotYet(where + 'this is what the projection leaves out')
        mean = M.mean(0)
        if not apart(found, mean + (M - mean) @ V @ V.T):
            raise NotYet(where + 'the mean was kept aside: a cache of '
                         'coordinates alone knows none')
        raise NotYet(where + 'this is not the nearest point in the span of '
                     'the columns; with orthonormal ones, coordinates are '
                     'products with them')
    M = normal(2, T := 3, w := 5)  # as the lesson has its rows
    V = np.linalg.qr(rng.standard_normal((w, 2)))[0].astype(np.float32)
    if apart(call(M, V), M.astype(np.float64) @ V @ V.T):
        raise NotYet(f'for M of shape {(2, T, w)}: right for one sequence of '
                     'rows, and not for two at once')


def measured(*rows):
    """The form of {row: loss or {rank: loss}}; rows[-1] is the student's."""
    def read(answer):
        if answer is ...:
            raise Untouched
        if not isinstance(answer, Mapping):
            raise NotYet(f'{short(answer)} is no dict; asked for is one with '
                         + ', '.join(map(repr, rows)))
        if missing := [row for row in rows if row not in answer]:
            raise NotYet(f'{missing[0]!r} is not among the losses')
        mine = answer[rows[-1]]
        if mine is ... or isinstance(mine, Mapping) and (
                not mine or all(x is ... for x in mine.values())):
            raise Untouched
        return {row: by_rank(answer[row], row) for row in rows}
    return read


def by_rank(losses, row):
    """{rank: loss, or None where it is still to do}, or one loss."""
    if not isinstance(losses, Mapping):
        return number()(losses).value
    return {int(r): None if x is ... else number()(x).value
            for r, x in losses.items()}


def check_losses(losses, values):
    full, oracle, fixed = (losses[row] for row in ('full', 'oracle', 'fixed'))
    if not all(isinstance(x, dict) for x in (oracle, fixed)):
        raise NotYet('asked for is a dict {rank: loss}')
    if missing := [r for r in oracle if fixed.get(r) is None]:
        raise NotYet('what is there can be read, still to do: '
                     + ', '.join(map(str, missing)))
    ranks = sorted(oracle)
    f, o = ([x[r] for r in ranks] for x in (fixed, oracle))
    if all(abs(a - b) < 0.005 for a, b in zip(f, o, strict=True)):
        raise NotYet('these are the losses of the oracle: were the '
                     'directions fitted on the very passage that is scored?')
    if all(x > 2 * full and b - 0.1 < math.log(x) < b + 4
           for x, b in zip(f, o, strict=True)):
        raise NotYet('these look like perplexities; asked for are losses, in '
                     'nats per token')
    if all(0 < x - (b - full) < full / 2 and x < full / 2
           for x, b in zip(f, o, strict=True)):
        raise NotYet('these look like what is added to the loss of full '
                     'attention; asked for are the losses themselves')
    for r in ranks:
        if fixed[r] < full - 0.2:
            raise NotYet(f'rank {r}: well below full attention. Is it the '
                         'same passage, and the same tokens of it, that are '
                         'scored?')
        if fixed[r] < oracle[r] - 0.15:
            raise NotYet(f'rank {r}: below the oracle, which knew the '
                         'passage. Which one were the directions fitted on, '
                         'and which one was scored?')
    if any(b > a + 0.15 for a, b in zip(f, f[1:], strict=False)):
        raise NotYet('the loss rises with the rank; more directions hold '
                     'more. Are the leading ones taken?')
    if f[0] > 12:
        raise NotYet('that is worse than guessing evenly among all tokens; '
                     'do the rows come back as keys and values in the order '
                     'they were laid in?')


FIXED_BASIS = Exercise(
    id='fixed-basis', lesson='05_low_rank',
    title='Directions Fixed Beforehand', kinds=('code',), minutes=30,
    hints=(
        'Of the three factors of a singular value decomposition one has a '
        'row for each token, one says how much, and one has the directions. '
        'Only the last can be taken to another passage.',
        'Projecting takes two products: one gives coordinates, the other '
        'makes rows of them again. The first is what would be cached.',
        'Let the model read the passage after this one with an attn_fn that '
        'keeps `rows(k, v)` of each block. A second attn_fn, for the passage '
        'that is scored, picks the directions of its block `i`.'),
    parts=(
        Part('basis', function('fit, r', array), (check_basis,),
             'These columns are fixed before the next token comes, so they '
             'need to be kept once and not for each passage.'),
        Part('project', function('M, V', array), (check_project,),
             'Between the two products there are r numbers per token: that '
             'is all a cache would hold.'),
        Part('loss', measured('full', 'oracle', 'fixed'), (check_losses,),
             'The distance to the oracle is what the oracle knew of the '
             'passage and no cache can know. How much is left of the room '
             'for a latent that is not learned?'),
    ))
