"""The exercise of lesson 01 on a forgotten position.

Losses depend on checkpoint and text, so of those only form and order are
checked: no figure stands here.
"""

import numpy as np

from .answers import NotYet, function, number, table
from .diagnose import formulas
from .engine import Exercise, Part
from .steps import MISTAKES, StepCase, steps, tried

# --- 1. The faulty step ------------------------------------------------------


def forgotten(i, start):
    """A prompt at its positions, every decoded token at 0."""
    return 0 if start else i


FAULTY = dict(position=forgotten)
NOT_FAULTY = {
    'correct': (
        {}, 'that is the correct step: the decoded tokens still have their '
            'own positions'),
    'all at 0': (
        dict(position=lambda i, start: 0),
        'the prompt is not rotated by its positions either; the mistake is '
        'to begin only after it'),
    'query only': (
        dict(query_position=forgotten),
        'only the query is at position 0; the key of a decoded token is '
        'rotated there as well'),
    'key only': (
        dict(position=forgotten, query_position=lambda i, start: i),
        'only the keys are at position 0; the query of a decoded token is '
        'rotated there as well'),
    'at 1': (
        dict(position=lambda i, start: 1 if start else i),
        'the decoded tokens are at position 1; asked for is 0'),
    **{name: ({**FAULTY, **changes}, message)
       for name, (changes, message) in MISTAKES.items()
       if name in ('no scale', 'no mask', 'new ones only')},
}


def small():
    return [StepCase(B=1, H=2, G=None, hd=4, chunks=(4, 1, 1, 1))]


def drawn():
    """Sizes drawn anew; two lengths, since JAX compiles for each."""
    rng = np.random.default_rng()
    B, H, half, P = map(int, rng.integers([2, 1, 1, 2], [4, 5, 5, 7]))
    return [StepCase(B, H, None, 2 * half, (P, 1, 1, 1, 1),
                     int(rng.integers(10**6)))]


def edges():
    """A prompt of one token."""
    return [StepCase(B=1, H=3, G=None, hd=2, chunks=(1, 1, 1))]


def plausible(given, values):
    """The deviation depends on initial weights: only its size is checked."""
    if given.value < 0:
        raise NotYet('a largest absolute difference is not negative')
    if given.value < 1e-4:
        raise NotYet('that is no more than rounding. Are a faulty and a '
                     'correct step compared, on the decoded tokens, each '
                     'with the cache of its own past, and is the input '
                     'normalized as in a block (`before_attention`)?')
    if given.value > 10:
        raise NotYet('that is larger than the outputs themselves can be; is '
                     'the same token compared with itself?')


# --- 2. Which offsets it uses ------------------------------------------------


def pairs():
    rng = np.random.default_rng()
    drawn = []
    for _ in range(5):
        P = int(rng.integers(3, 1000))
        drawn.append((P + int(rng.integers(2, 100)), int(rng.integers(1, P))))
    return drawn


def decoded_pairs():
    """p > i, both after the prompt."""
    rng = np.random.default_rng()
    return [(i + int(rng.integers(2, 100)), i)
            for i in map(int, rng.integers(3, 1000, size=5))]


TO_PREFIX = formulas(pairs, lambda p, j: -j, [
    (lambda p, j: p - j,
     'that is the offset in the correct cache; at which position is the '
     'query rotated in the faulty one?'),
    (lambda p, j: j, 'the sign: offset is query position less key position'),
    (lambda p, j: j - p,
     'that is the correct cache, with the sign turned around'),
    (lambda p, j: 0,
     'the keys of the prompt are not at 0: they were rotated where they '
     'stood'),
    (lambda p, j: p, 'the query is at 0, wherever it stands in the text'),
    (lambda p, j: -p, 'the key is at j, and the query no longer at p'),
], names='pj')
TO_DECODED = formulas(decoded_pairs, lambda p, i: 0, [
    (lambda p, i: p - i,
     'that is the offset in the correct cache; at which positions are the '
     'two rotated in the faulty one?'),
    *((wrong, 'at which position was the key of an earlier decoded token '
       'rotated, in this cache?')
      for wrong in (lambda p, i: -i, lambda p, i: i)),
    (lambda p, i: p, 'the query of the newest token is at 0, too'),
    (lambda p, i: 1, 'an offset of 1 would take two positions side by side'),
], names='pi')

# --- 3. On a checkpoint ------------------------------------------------------

# of a trained model on prose with a long context, in nats per token
LOWEST, HIGHEST, GUESSED = 1, 7, 11  # ln V is just below the last
LARGEST_PERPLEXITY = 100  # a sum over tens of tokens is larger
ACTS = 0.1  # what a forgotten position costs at least


def mean_losses(losses, values):
    """Two means in nats, told apart from what else may be reported."""
    given = {name: x.value for name, x in losses.given.items()}
    if min(given.values()) <= 0:
        raise NotYet('a loss is not negative: is it the *negative* log of '
                     'the probability of what came?')
    correct = given.get('correct', LOWEST)
    if correct > LARGEST_PERPLEXITY:
        raise NotYet('that is a sum over tokens, which grows with their '
                     'number; asked for is the mean')
    if correct > GUESSED:
        raise NotYet('that would be worse than a guess among all tokens. Is '
                     'it a perplexity, the exponential of the mean loss?')
    if correct > HIGHEST:
        raise NotYet('`correct` is little better than a guess among all '
                     'tokens. Is each row of logits held against the token '
                     'that comes next, and is all of the prompt cached?')
    if correct < LOWEST:
        raise NotYet('`correct` is lower than a model of this size gets on '
                     'prose. Is each row of logits held against a token that '
                     'the model has not read yet?')
    if losses.missing:
        raise NotYet('still to do: ' + ', '.join(losses.missing))
    more = given['faulty'] - correct
    if given['faulty'] > 2 * GUESSED:
        raise NotYet('`faulty` is no mean in nats, while `correct` may be '
                     'one; are both taken in the same way?')
    if abs(more) < 1e-3:
        raise NotYet('the two are equal: the mistake did not act. Does the '
                     'position that you change reach the embedding, or the '
                     'rotation in `project`, whichever the checkpoint has?')
    if more < 0:
        raise NotYet('the faulty cache reads better than the correct one; '
                     'are the two exchanged?')
    if more < ACTS:
        raise NotYet('the mistake hardly acts. Is it made for every decoded '
                     'token, in every block?')


MISSING_OFFSET = Exercise(
    id='missing-offset', lesson='01_cache', title='A Forgotten Offset',
    kinds=('code', 'paper', 'extended'), minutes=60,
    hints=(
        'The step of this lesson tells `rope` where the new tokens begin. The '
        'layer\'s own `project(X)` rotates from an offset that you may leave '
        'out. All else stays: the cache grows, the mask is the same. To '
        'compare, keep two caches and feed both steps the same tokens.',
        'Write the position at which each of three is rotated next to it: '
        'the query, a key of the prompt, a key of an earlier decoded token. '
        'A score depends on the difference of two such numbers only.',
        'For the checkpoint, walk through the blocks yourself: '
        '`before_attention`, then `project(Z, Z, Z, position)`, which rotates '
        'only if the model does, then attend to the cache, `W_o` and '
        '`after_attention`. A learned position is added to the embedding '
        'before. One function with `position` as an argument does for both '
        'caches, and both begin with the same prompt.'),
    parts=(
        Part('step', function('', tried), tuple(
            steps(cases, FAULTY, NOT_FAULTY)
            for cases in (small, drawn, edges)),
            'It raises nothing, and the prompt is even right: a check that '
            'reads only the prompt\'s logits would pass.'),
        Part('deviation', number(), (plausible,),
             'Thousands of times the rounding that the lesson found: a '
             'comparison of logits sees it at once.'),
        Part('to_prefix', function('p, j', number()), (TO_PREFIX,),
             'The distance no longer depends on p, and has the wrong sign: '
             'the query seems to stand before the prompt\'s tokens.'),
        Part('to_decoded', function('p, i', number()), (TO_DECODED,),
             'All decoded tokens seem to stand at one place: what they say '
             'can still be read, their order cannot.'),
        Part('losses', table(('correct', 'faulty')), (mean_losses,),
             'The model still reads all that was cached and raises nothing; '
             'its loss alone says that something is wrong, and only next to '
             'that of a pass without a cache.'),
    ))
