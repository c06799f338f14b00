"""Exercise of lesson 02: what holds the cache, and what a step costs.

Bytes are checked exactly or nearly so, times only for the form of their fit:
a line through the reader's own times, by least squares. How fast a machine
is, nobody is asked to show.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .answers import NotYet, Untouched, function, number, short, table
from .diagnose import formulas, tables
from .engine import Exercise, Part

# the lesson's model: 12 blocks and heads of width 64, fp32
BLOCKS, HEADS, WIDTH = 12, 12, 64
WEIGHTS = 4 * (50257 * 768 + BLOCKS * (4 * 768**2 + 3 * 768 * 2048 + 2 * 768)
               + 768)
ROW = 2 * HEADS * WIDTH * 4  # bytes of a token's key and value in one block
NEARLY = 0.02  # relative: what a step takes besides, of its new rows

# --- Reading ----------------------------------------------------------------


def record(names, given=()):
    """The form of a dict of numbers that a notebook has begun to fill in.

    given: names of those that are there already, and no attempt yet.
    """
    read = table((*names, *given))

    def read_record(answer):
        if isinstance(answer, Mapping) and all(
                answer.get(name, ...) is ... for name in names):
            raise Untouched
        return complete(read(answer))
    return read_record


def complete(found):
    if found.missing:
        raise NotYet('still to do: ' + ', '.join(map(str, found.missing)))
    return {name: value.value for name, value in found.given.items()}


@dataclass(frozen=True)
class Fit:
    """Seconds by number of sequences, and the line through them."""

    context: float
    seconds: dict
    t0: float
    t1: float

    def least_squares(self, slope=1):
        b, t = np.array(list(self.seconds.items())).T
        return np.linalg.lstsq(np.stack([b**0, slope * b], 1), t, rcond=None
                               )[0]


def fit(answer):
    """The form of {'context', 'seconds': {b: s}, 't0', 't1'}."""
    if answer is ...:
        raise Untouched
    names = 'context', 'seconds', 't0', 't1'
    if not isinstance(answer, Mapping) or set(answer) != set(names):
        raise NotYet(f'{short(answer)} is not a dict with just '
                     + ', '.join(map(repr, names)))
    seconds, rest = answer['seconds'], {
        name: answer[name] for name in names if name != 'seconds'}
    if not isinstance(seconds, Mapping):
        raise NotYet('`seconds` is a dict, a time for each number of '
                     'sequences')
    seconds = {short_number(number()(b).value): t
               for b, t in seconds.items()}
    untouched = [rest['t0'], rest['t1'], *seconds.values()]
    if all(value is ... for value in untouched):
        raise Untouched
    rest = complete(table(tuple(rest))(rest))
    times = complete(table(tuple(seconds))(seconds))
    return Fit(seconds=times, **rest)


def short_number(x):
    return int(x) if x == int(x) else x


# --- Checks of bytes ---------------------------------------------------------

HELD = {'rope': 2, 'learned': 3 / 2, 'rope, a step later': 1,
        'learned, a step later': 1}


def parts_of(key):
    return 'rope' if key.startswith('rope') else 'learned'


RATIOS = tables(HELD.get, [
    (lambda key: 1,
     'nothing is held beyond the formula: does the cache keep a copy? Views '
     'of the fused projection were to be kept, as `chunk` returns them'),
    (lambda key: 1 / HELD[key],
     'upside down: what is held over what the formula says'),
    (lambda key: {'rope': 2, 'learned': 1.5}[parts_of(key)],
     'as much as before the step: the cache before it was measured, or one '
     'that the step did not go into. What does `cat` return?'),
    (lambda key: 2,
     'rotated keys are new tensors, keys that are not rotated are views as '
     'values are. Of which tensors does each case keep the buffers alive?'),
    (lambda key: {'rope': 2.5, 'learned': 3}[parts_of(key)],
     'a buffer counts once, however many views it has'),
    (lambda key: {'rope': 4, 'learned': 3}[parts_of(key)],
     'that counts parts of a buffer; asked for is what is held over the two '
     'parts that are needed'),
], rtol=1e-3, where=repr)


def factor(H, G, rope):
    """Parts that are held over parts that are needed.

    Keys that are rotated are tensors of their own; what is not holds the
    buffer of all three.
    """
    fused = H + G + G
    return (fused + (G if rope else 0)) / (G + G)


FACTORS = [
    (lambda H, G, rope: factor(H, H, rope),
     'that is without sharing; the fused buffer has as many parts as there '
     'are heads of all three kinds'),
    (lambda H, G, rope: factor(G, G, rope),
     'the queries\' part of the buffer has as many heads as there are query '
     'heads'),
    (lambda H, G, rope: factor(H, G, not rope),
     'the other way round: a rotated key is a new tensor, one that is not is '
     'a view'),
    (lambda H, G, rope: factor(H, G, False),
     'a rotated key is a tensor of its own, beside the buffer that the value '
     'holds'),
    (lambda H, G, rope: factor(H, G, True),
     'keys that are not rotated are views of the same buffer as values, which '
     'is held once'),
    (lambda H, G, rope: (H + 2 * G) / G if not rope else factor(H, G, True),
     'a buffer counts once, however many views it has'),
    (lambda H, G, rope: 2 * factor(H, G, rope),
     'twice of it: needed are keys *and* values'),
    (lambda H, G, rope: 1 / factor(H, G, rope),
     'upside down: what is held over what is needed'),
]


def small():
    return [(6, 6, True), (6, 6, False), (6, 2, True), (6, 2, False)]


def random_cases():
    rng = np.random.default_rng()
    G, r = map(int, rng.integers([2, 2], [9, 9]))
    return [(G * r, G, True), (G * r, G, False)]


def edges():
    """One head in all; one key-value head for all."""
    return [(1, 1, True), (1, 1, False), (32, 1, True), (32, 1, False)]


def block_bytes(context, batch, rows=0):
    return ROW * (context + rows) * batch


def sure(condition, message):
    if not condition:
        raise NotYet(message)


def check_positive(found):
    for name, value in found.items():
        sure(value > 0, f'{name} is to be positive')


def check_peaks(found, values):
    """Growing holds the old keys and values of the layer beside the new."""
    check_positive(found)
    n, b = found['context'], found['batch']
    one = block_bytes(n, b)
    saved = found['growing'] - found['in_place']
    sure(found['in_place'] > one * (1 - NEARLY),
         'for in_place: less than the keys and values themselves. The step '
         'and the cache that it begins with are to be made inside the '
         'function that is watched')
    if abs(saved) <= 0.1 * one:
        raise NotYet('both peaks are the same: is `cat` still in the second '
                     'step, or are slices of the buffer copied on the way to '
                     'the attention?')
    sure(saved > 0, 'the buffer takes more than what grows: which is which?')
    sure(found['in_place'] < 2 * one, 'for in_place: more than two layers '
         'keep. Watch the step of one layer, with its cache alone')
    for factor, message in (
            (1 / 2, 'half of it: keys *and* values are both made anew by '
                    'growing; is one of the two still grown?'),
            (2, 'twice of it: is more than one old copy alive?')):
        sure(abs(saved / one - factor) > NEARLY * factor, message)
    sure(abs(saved / one - 1) <= NEARLY,
         'the difference of the two is not what a layer keeps of '
         '`context` tokens in `batch` sequences: what is alive at the moment '
         'at which the new tensor is made?')


def check_donation(found, values):
    """Without donation a step makes a whole new cache."""
    check_positive(found)
    whole = BLOCKS * block_bytes(found['context'], found['batch'])
    saved = found['kept'] - found['donated']
    sure(abs(saved) > 0.001 * whole,
         'both peaks are the same: do both functions donate, or none?')
    sure(saved > 0, 'the donated step takes more: which is which?')
    for factor, message in (
            (1 / 2, 'half of it: keys *and* values are donated, two buffers'),
            (1 / BLOCKS, 'that is the cache of one block; the buffers hold '
                         'all of them'),
            (1 / found['batch'], 'that is with one sequence'),
            (2, 'twice of it: is the cache counted among the arguments, '
                'too?')):
        sure(factor == 1 or abs(saved / whole - factor) > 0.001 * factor,
             message)
    sure(abs(saved / whole - 1) <= 0.001,
         'the difference is not the cache: is `context` the number of slots '
         'and `batch` the number of sequences that were compiled for?')


# --- Checks of times --------------------------------------------------------


def check_reading(found, values):
    """Bytes over bandwidth, for the weights and for one sequence's cache."""
    check_positive(found)
    n, rate = found['context'], found['bandwidth']
    for name, right, wrongs in (
            ('t0', WEIGHTS, [
                (WEIGHTS / 4, 'that counts weights; each has four bytes'),
                (WEIGHTS - 4 * 50257 * 768,
                 'the embedding is missing: a step looks up one row of it, '
                 'and then multiplies with all of it to get logits'),
                (WEIGHTS + BLOCKS * block_bytes(n, 1),
                 'the cache is in t0, too; what is read once for all '
                 'sequences, and what for each?')]),
            ('t1', BLOCKS * block_bytes(n, 1), [
                (block_bytes(n, 1), 'that is the cache of one block'),
                (BLOCKS * ROW, 'that is the cache of one token'),
                (BLOCKS * block_bytes(n, 1) / 2,
                 'half of it: keys *and* values are read'),
                (BLOCKS * block_bytes(n, 1) / 4,
                 'that counts numbers; each has four bytes'),
                (WEIGHTS, 'weights are read once for all sequences; what is '
                          'read for each?')])):
        given, place = found[name] * rate, f'for {name}: '
        for wrong, message in wrongs:
            sure(abs(given - wrong) > 1e-3 * wrong, place + message)
        sure(abs(given / right - rate**2) > 1e-3 * rate**2,
             place + 'multiplied; bytes over bytes per second are seconds')
        sure(abs(given / right - 1e3) > 1, place + 'that is in milliseconds; '
             'all times are in seconds')
        sure(abs(given - right) <= 1e-2 * right,
             f'{place}times the bandwidth it is not the bytes that are read')


def check_line(found, values):
    """The line by least squares through the reader's times, and positive."""
    sure(len(found.seconds) >= 3, 'a line through two points says nothing of '
         'how well it fits; take three batch sizes or more')
    check_positive({'a number of sequences': min(found.seconds),
                    'a time': min(found.seconds.values())})
    b, t = np.array(sorted(found.seconds.items())).T
    t0, t1 = found.least_squares()
    scale = np.abs(t0 + t1 * b).max()

    def is_line(intercept, slope):
        return np.abs(found.t0 - intercept + (found.t1 - slope) * b
                      ).max() <= 0.01 * scale
    if not is_line(t0, t1):
        ends = (t[-1] - t[0]) / (b[-1] - b[0])
        for line, message in (
                ((t1, t0), 't0 and t1 are exchanged: t1 is what each '
                           'sequence adds'),
                ((0, (b @ t) / (b @ b)), 'that line goes through the origin; '
                 'weights are read however few sequences there are'),
                ((t[0] - ends * b[0], ends), 'that line goes through the '
                 'first and the last point; least squares take all of them'),
                ((1e3 * t0, 1e3 * t1), 'the line is in milliseconds, the '
                 'times are in seconds'),
                (np.polyfit(np.log(b), t, 1)[::-1], 'that is a line in the '
                 'logarithm of b; each sequence more adds the same'),
                (np.polyfit(np.arange(len(b)), t, 1)[::-1],
                 'that is a line in the number of the measurement; it is to '
                 'be one in b')):
            sure(not is_line(*line), message)
        raise NotYet('that is not the line of least squares through these '
                     'times: minimise the sum of (t0 + b t1 - t)² over t0 '
                     'and t1')
    sure(t1 > 0, 'more sequences take no longer: has the cache of each as '
         'many tokens as `context`, and was the work done when the clock was '
         'stopped?')
    sure(t0 > 0, 't0 is not positive, so these times are too noisy: take the '
         'least of more repetitions, with nothing else running')


def check_same(found, values):
    """Two fits can be compared if they are of the same contexts."""
    other = values.get('copied')
    if not isinstance(other, Fit):
        return
    sure((found.context, set(found.seconds))
         == (other.context, set(other.seconds)),
         'other sizes than in the first fit; only the way of keeping is to '
         'differ')
    sure(found.seconds != other.seconds,
         'these are the times of the first fit, to the last digit')


CACHE_BUFFERS = Exercise(
    id='cache-buffers', lesson='02_memory', title='Buffers and Steps',
    kinds=('code', 'extended'), minutes=60,
    hints=(
        'The tools are in the lesson: it measures what keeps bytes alive, '
        'and what a step takes at its peak. Only what is in the function '
        'that `d2l.step_memory` runs, or compiles, is counted.',
        'For the line write one equation t0 + b · t1 = t for each b, and '
        'solve all of them by least squares: `np.polyfit(bs, ts, 1)` returns '
        'the slope first. Make the cache before the clock starts, and let '
        'the least of several repetitions count (`pick=min`).',
        'A step in place makes nothing that is as long as the context. In '
        'PyTorch it writes a slice of a buffer with room for one token more '
        'and attends to the filled part; in JAX it donates its buffers, and '
        'each call takes those that the one before it returned.'),
    parts=(
        Part('held', table(tuple(HELD)), (RATIOS,),
             'The leak lasts from the prefill to the first step, whose `cat` '
             'makes new tensors: a server whose prompts wait for their turn '
             'pays for it all that time.', backend='torch'),
        Part('factor', function('H, G, rope', number()), tuple(
            formulas(cases, factor, FACTORS, names=('H', 'G', 'rope'))
            for cases in (small, random_cases, edges)),
            'The more query heads share a key, the worse the leak: most of '
            'the fused buffer are queries, which nobody needs again.',
            backend='torch'),
        Part('donation', record(('kept', 'donated'), ('context', 'batch')),
             (check_donation,),
             'The old cache is not needed after the step; giving it away '
             'saves a second one, which a large batch could not afford.',
             backend='jax'),
        Part('copied', fit, (check_line,),
             'A step pays once for what all sequences share, and for each '
             'sequence as much again as its cache and its arithmetic take.'),
        Part('reading', record(('bandwidth', 't0', 't1'), ('context',)),
             (check_reading,),
             'These are lower bounds, if the bandwidth is the best that the '
             'machine has. What the measured line has above them is '
             'arithmetic, copies, and the calls themselves.'),
        Part('peaks', record(('growing', 'in_place'), ('context', 'batch')),
             (check_peaks,),
             'At the worst moment one layer has its keys and values twice. '
             'The other layers wait for their turn, so of the whole model '
             'it is a twelfth.', backend='torch'),
        Part('in_place', fit, (check_line, check_same),
             'The bytes that are kept are the same in both lines; what '
             'differs is how many are written anew in each step.'),
    ))
