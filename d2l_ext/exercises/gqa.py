"""Exercises of lesson 04: sharing keys and values."""

import numpy as np

from .answers import NotYet, function, number
from .engine import Exercise, Part
from .steps import StepCase, steps, tried


def small():
    """Two groups of three heads; a prompt, then a token, then a chunk."""
    return [StepCase(B=1, H=6, G=2, hd=4, chunks=(3, 1, 2))]


def split():
    """Any split gives the same; sizes are drawn anew.

    One case, and chunks of two lengths: JAX compiles for each.
    """
    rng = np.random.default_rng()
    G, r, B, half = map(int, rng.integers([2, 2, 2, 1], [4, 4, 4, 5]))
    chunks = (1, *map(int, 1 + 2 * rng.integers(2, size=3)))
    return [StepCase(B, G * r, G, 2 * half, chunks,
                     int(rng.integers(10**6)))]


def edges():
    """A prompt of one token and one head for all; one head for each."""
    return [StepCase(B=2, H=4, G=1, hd=6, chunks=(1, 1)),
            StepCase(B=3, H=3, G=3, hd=4, chunks=(2, 2))]


# sizes at which no other array has as many elements as repeated keys, neither
# over the filled rows (6 in all) nor over some more that a buffer may have
SPARING = StepCase(B=2, H=15, G=3, hd=14, chunks=(5, 1))


def copies_nothing(call, values):
    """No keys or values for all query heads, not even for a moment."""
    made = call(SPARING).made
    if any(B * SPARING.D * S in made for B in (1, SPARING.B)
           for S in range(sum(SPARING.chunks) - 1, 13)):
        raise NotYet('the numbers are right, but on the way keys or values '
                     'are copied out to all query heads: what is kept has '
                     'shrunk, what is read has not')


def check_difference(given, values):
    """Rounding, and nothing else, may stand between the two."""
    if given.value < 0:
        raise NotYet('a largest difference is not negative; take the absolute '
                     'values first')
    if given.value >= 1e-4:
        raise NotYet('far more than rounding. Has each block a cache of its '
                     'own, and does a block add its two parts as in the '
                     'model?')


CACHED_GQA = Exercise(
    id='cached-gqa', lesson='04_gqa', title='A Cached Step with Shared Heads',
    kinds=('code',), minutes=40,
    hints=(
        'The layer has a method `project(queries, keys, values, offset)` that '
        'returns queries, keys and values with their own numbers of heads, '
        'rotated from a position on. Which position is that of the first new '
        'token, and where can the step read it off?',
        'First extend the cache, then attend to all of it. Of the new tokens '
        'number i may see all that was cached, and the new ones up to '
        'itself: the offset mask of the lesson on the cache.',
        'The heads of a group are neighbours. Lay their queries one below '
        'the other, as the queries of a single head, or let the framework\'s '
        'attention group them; in both cases the mask is that of one head.'),
    parts=(
        Part('step', function('', tried), tuple(
            steps(cases) for cases in (small, split, edges)) + (
                copies_nothing,),
            'The outputs are those of a full pass for any split, and the '
            'cache never held more than the shared heads: what is kept and '
            'what is read have shrunk together.'),
        Part('difference', number(), (check_difference,),
             'Nothing around the layer had to change: norms, feed-forward '
             'networks and the output see one token at a time anyway.'),
    ))
