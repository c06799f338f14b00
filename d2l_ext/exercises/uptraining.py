"""Exercise of lesson 04: fewer heads for a model that is trained already.

Conversions are checked on weights of random sizes, as `get_weights` names
them, a linear map as (out, in). Losses are checked for what must hold
between them, whatever they are.

H query heads, G key-value heads asked for, hd head width, D model width
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .answers import NotYet, array, function, short, table
from .engine import Exercise, Part

TOLERANCE = 1e-5  # of weights of order 1, in fp32

# --- Weights to convert -----------------------------------------------------


class Weights(dict):
    """{name: array} that says in a message what it is."""

    def __repr__(self):
        return f'the weights of a model with {self.what}'


@dataclass(frozen=True)
class Case:
    """A model's sizes; tied: the heads of each group are equal already."""

    H: int
    G: int
    hd: int
    blocks: int = 1
    bias: bool = False
    tied: bool = False
    seed: int = 0

    def heads(self, rng, *inner):
        """(H * hd, ...): one head below the other."""
        groups = self.G if self.tied else self.H
        a = rng.standard_normal((groups, self.hd, *inner))
        return np.repeat(a, self.H // groups, axis=0).reshape(-1, *inner)

    def weights(self):
        rng, D = np.random.default_rng(self.seed), self.H * self.hd
        found = Weights({'token_emb.weight': rng.standard_normal((7, D))})
        for i in range(self.blocks):
            at = f'blks.{i}.attention.W_'
            for name in 'qkvo':
                shared = name in 'kv'
                found[f'{at}{name}.weight'] = (
                    self.heads(rng, D) if shared
                    else rng.standard_normal((D, D)))
                if self.bias:
                    found[f'{at}{name}.bias'] = (
                        self.heads(rng) if shared else rng.standard_normal(D))
            found[f'blks.{i}.norm1.weight'] = rng.standard_normal(D)
            found[f'blks.{i}.ffn.W_1.weight'] = rng.standard_normal((2 * D, D))
        found = Weights({name: a.astype(np.float32)
                         for name, a in found.items()})
        found.what = (f'{self.blocks} block{"s" * (self.blocks > 1)} and '
                      f'{self.H} key-value heads of width {self.hd}'
                      + ', with biases' * self.bias)
        return found


def is_shared(name):
    return name.split('.')[-2] in ('W_k', 'W_v')


def each_group(case, a, pick):
    """One head for each run of H / G neighbours; a: (H * hd, ...)."""
    r, hd = case.H // case.G, case.hd
    return np.concatenate([
        pick([a[h * hd:(h + 1) * hd] for h in range(g * r, (g + 1) * r)])
        for g in range(case.G)])


def dealt_out(case, a):
    """Heads g, g + G, g + 2G, ... in place of neighbours."""
    return a.reshape(case.H // case.G, -1, *a.shape[1:]).mean(0)


def rows_not_heads(case, a):
    return a.reshape(case.G * case.hd, -1, *a.shape[1:]).mean(1)


PICKS = {'mean': lambda heads: sum(heads) / len(heads),
         'first': lambda heads: heads[0]}
MISTAKES = [
    (dealt_out,
     'the wrong heads are put together: a group are neighbours (0, 1, 2, 3), '
     'as query heads read them, not every so many (0, 2, 4, 6)'),
    (rows_not_heads,
     'neighbouring rows are averaged within a head. A head is `hd` rows, and '
     'what belongs together is row i of each head in the group'),
    (lambda case, a: each_group(case, a, sum),
     'heads are added up: the scores of the new head would be as many times '
     'too large. How is a mean different?'),
    (lambda case, a: a[:case.G * case.hd],
     'those are the first heads of the model. Asked for is one of each '
     'group'),
    (lambda case, a: each_group(case, a, lambda heads: heads[-1]),
     'that is the last head of each group'),
    (lambda case, a: each_group(case, a, PICKS['first']),
     'that is the first head of each group; asked for is the mean of all'),
    (lambda case, a: each_group(case, a, PICKS['mean']),
     'that is the mean of each group; asked for is its first head'),
]


def converted(answer):
    """The form of {name: array}."""
    if answer is None:
        raise NotYet('None came; asked for is a dict of weights. Does a '
                     '`return` miss?')
    if not isinstance(answer, Mapping):
        raise NotYet(f'{short(answer)} is no dict; asked for is one array '
                     'for each name, as they came')
    return {name: array(a) for name, a in answer.items()}


# --- Checks of a conversion -------------------------------------------------


def close(a, b):
    return a.shape == b.shape and np.abs(a - b).max(initial=0) < TOLERANCE


def check_names(given, before):
    if lost := [name for name in before if name not in given]:
        raise NotYet(f'{lost[0]} is missing: the new model has weights of all '
                     'names that the old one has, most of them unchanged')
    if more := [name for name in given if name not in before]:
        raise NotYet(f'{more[0]!r} is no name of the old model; the names '
                     'stay')


def check_others(given, before):
    """What has nothing to do with keys and values stays."""
    for name, a in before.items():
        if is_shared(name) or close(given[name], a):
            continue
        if '.W_q.' in name:
            raise NotYet('W_q is changed: there are as many query heads as '
                         'before, and each keeps what it asks')
        raise NotYet(f'{name} is changed; only keys and values are shared')


def check_shared(case, given, before, pick):
    for name, old in before.items():
        if not is_shared(name):
            continue
        right, new = each_group(case, old, pick), given[name]
        if close(new, right):
            continue
        if name.endswith('bias'):
            raise NotYet(f'{name} is not right: a bias has one number for '
                         'each row of its weight, and goes with it')
        if close(new, old):
            other = name.replace('W_v', 'W_k')
            raise NotYet(
                f'{name} is as it was'
                + (', while keys are converted: values are shared, too'
                   if other != name and close(given[other], each_group(
                       case, before[other], pick)) else ''))
        if new.ndim == 2 and new.shape[1] != old.shape[1]:
            raise NotYet(f'{name} has shape {new.shape}, it had {old.shape}: '
                         'heads stand one below the other in the rows (out); '
                         'the columns are what comes in')
        if new.shape != right.shape:
            raise NotYet(f'{name} has shape {new.shape}; {case.G} heads of '
                         f'width {case.hd} are asked for')
        for mistake, message in MISTAKES:
            if close(new, mistake(case, old)):
                raise NotYet(f'{name}: {message}')
        raise NotYet(f'{name} has the right shape and other numbers; try it '
                     'on a weight whose rows all say which head they are of')


def conversions(cases, pick):
    """A check of a conversion on cases, a function that returns them."""
    def check(call, values):
        for case in cases():
            given_away = case.weights()
            given = call(given_away, case.hd, case.G)
            before, place = case.weights(), f'for {case.weights()!r}: '
            try:
                check_names(given, before)
                if not all(name in given_away and close(given_away[name], a)
                           for name, a in before.items()):
                    raise NotYet('the weights that came in are changed; the '
                                 'parent is needed again')
                check_others(given, before)
                check_shared(case, given, before, pick)
            except NotYet as wrong:
                raise NotYet(place + str(wrong)) from None
    return check


def small():
    """Two groups of three heads; a random one of more blocks."""
    return [Case(H=6, G=2, hd=2)]


def tied():
    """A property: heads that are equal lose nothing."""
    return [Case(H=8, G=2, hd=3, tied=True, seed=1)]


def random_cases():
    rng = np.random.default_rng()
    G, r, hd, blocks = map(int, rng.integers([2, 2, 2, 1], [4, 5, 5, 4]))
    return [Case(G * r, G, hd, blocks, seed=int(rng.integers(10**6)))]


def edges():
    """One head for all; one for each, so that nothing changes; biases."""
    return [Case(H=4, G=1, hd=3), Case(H=3, G=3, hd=4),
            Case(H=6, G=3, hd=2, bias=True)]


def conversion(name):
    return tuple(conversions(cases, PICKS[name])
                 for cases in (small, tied, random_cases, edges))


# --- Checks of losses -------------------------------------------------------

BEFORE, AFTER = ('parent', 'mean', 'first'), ('mean', 'scratch')
SYMBOLS = 28


def loss_values(losses):
    """{key: loss} if all are there and can be losses."""
    found = {key: given.value for key, given in losses.given.items()}
    for key, loss in found.items():
        if loss <= 0:
            raise NotYet(f'for {key}: a loss in nats per character is '
                         'positive')
    if losses.missing:
        raise NotYet('still to do: ' + ', '.join(losses.missing))
    return found


def same(a, b):
    return abs(a - b) <= 1e-7 * abs(a)


def check_before(losses, values):
    loss = loss_values(losses)
    if loss['parent'] > math.log(SYMBOLS):
        raise NotYet('the parent is worse than guessing evenly among the 28 '
                     'symbols: is that a perplexity, or was it measured '
                     'before training?')
    for key in ('mean', 'first'):
        if same(loss[key], loss['parent']):
            raise NotYet(f'for {key}: the loss of the parent, to the last '
                         'digit. Was the model that is measured built with '
                         'two heads, and given the new weights?')
    if same(loss['mean'], loss['first']):
        raise NotYet('both conversions have one loss: was the second one '
                     'made from the parent\'s weights, with the other '
                     'function?')
    if loss['parent'] > min(loss.values()):
        raise NotYet('a model whose heads were just taken away is better '
                     'than its parent: were any steps taken before it was '
                     'measured, or is the parent\'s loss one of training?')


def sound(losses):
    """The losses before training if nothing is wrong with them, else {}."""
    try:
        check_before(losses, {})
        return loss_values(losses)
    except (NotYet, AttributeError):  # said where it belongs, or not there
        return {}


def check_after(losses, values):
    loss = loss_values(losses)
    for key, x in loss.items():
        if x > math.log(SYMBOLS):
            raise NotYet(f'for {key}: after training, and worse than guessing '
                         'evenly among the 28 symbols; is that a perplexity?')
    before = sound(values.get('before'))
    if before and min(loss.values()) < before['parent'] / 2:
        raise NotYet('less than half the loss of the parent: is it in nats '
                     'per character, and that of the validation text?')
    if before and loss['mean'] >= before['mean']:
        raise NotYet('for mean: the steps did not help. Does the optimizer '
                     'hold the parameters of the converted model, made after '
                     'its weights were set?')
    if before and loss['scratch'] > 1.3 * before['parent']:
        raise NotYet('for scratch: far behind the parent, as after a few '
                     'steps. It is to have as many as both trainings of the '
                     'other model together')
    if same(loss['mean'], loss['scratch']):
        raise NotYet('both models have one loss, to the last digit: is one '
                     'measured twice?')


UPTRAINING = Exercise(
    id='uptraining', lesson='04_gqa', title='Taking Heads Away Afterwards',
    kinds=('code', 'extended'), minutes=45,
    hints=(
        'Give `W_k` a shape in which its heads can be seen: `hd` rows for '
        'each, and the rows stand in the order of the heads. Then give the '
        'heads a shape in which the groups can be seen.',
        'Of all names in the dict only those of `W_k` and `W_v` change, '
        'weights and, where there are any, biases; a bias has the rows of '
        'its weight and no columns. All other arrays pass through.',
        'Losses: `d2l.get_weights(parent)` is taken once, after 300 steps. '
        'Each converted model is a new one with two heads that gets weights '
        'by `d2l.set_weights`, is measured, and only then gets an optimizer '
        'of its own.'),
    parts=(
        Part('pool', function('weights, hd, G', converted),
             conversion('mean'),
             'A key depends on its weights linearly, and positions rotate '
             'all heads alike: the new key is the mean of the old ones in its '
             'group, and the queries were made for those.'),
        Part('pick', function('weights, hd, G', converted),
             conversion('first'),
             'A quarter of the query heads finds its own keys and values '
             'again, the others read what was made for a neighbour.'),
        Part('before', table(BEFORE), (check_before,),
             'What a conversion loses is what the heads of a group did not '
             'have in common: nothing in training made neighbours alike.'),
        Part('after', table(AFTER), (check_after,),
             'Embeddings, queries and feed-forward networks were still there, '
             'so steps do more here than at the start of training. Whether it '
             'is enough is for the three numbers to say.'),
    ))
