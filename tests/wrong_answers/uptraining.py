"""Lesson 04: conversions of weights, and losses of what they give."""

import numpy as np

from . import Wrong


def convert(weights, hd, G, new=lambda heads: heads.mean(1),
            names=('W_k', 'W_v'), bias=True):
    """new: (G, r, hd, ..) to (G, hd, ..); names: what is converted."""
    found = {}
    for name, a in weights.items():
        if any(part in name for part in names) and (bias or a.ndim == 2):
            heads = a.reshape(G, -1, hd, *a.shape[1:])
            a = new(heads).reshape(-1, *a.shape[1:])
        found[name] = a
    return found


def pick(weights, hd, G, **changes):
    return convert(weights, hd, G, **{'new': lambda heads: heads[:, 0],
                                      **changes})


def changed(**changes):
    return lambda weights, hd, G: convert(weights, hd, G, **changes)


def each(function):
    """A conversion of each array of W_k and W_v by itself."""
    def conversion(weights, hd, G):
        return {name: function(a, hd, G) if '.W_k.' in name or '.W_v.' in name
                else a for name, a in weights.items()}
    return conversion


def dealt_out(a, hd, G):
    return a.reshape(-1, G * hd, *a.shape[1:]).mean(0)


def columns(a, hd, G):
    r = len(a) // (G * hd)
    return a.reshape(len(a), G, r, hd).mean(2).reshape(len(a), -1)


def in_place(weights, hd, G):
    for name in list(weights):
        if 'W_k' in name or 'W_v' in name:
            weights[name] = convert({name: weights[name]}, hd, G)[name]
    return weights


def with_matrices(weights, hd, G):
    """By products with a matrix that averages, in lists."""
    found = dict(weights)
    for name in weights:
        if name.split('.')[-2][-1] in 'kv' and 'attention' in name:
            H = len(weights[name]) // hd
            M = np.kron(np.kron(np.eye(G), np.full(H // G, G / H)),
                        np.eye(hd))
            found[name] = (M @ weights[name]).tolist()
    return found


BEFORE = {'parent': 1.7, 'mean': 3.18, 'first': 3.73}
AFTER = {'mean': 2.18, 'scratch': 1.73}
RIGHT = {'uptraining': dict(pool=convert, pick=pick, before=BEFORE,
                            after=AFTER)}
OTHER = [
    ('uptraining', 'a matrix that averages', dict(pool=with_matrices)),
    ('uptraining', 'rows by their numbers', dict(pick=each(
        lambda a, hd, G: a[[g * len(a) // G + i for g in range(G)
                            for i in range(hd)]]))),
    ('uptraining', 'other losses', dict(
        before={'parent': '1.52', 'mean': np.float32(2.1), 'first': '1.9'},
        after={'mean': 1.4, 'scratch': [1.6]})),
]


def wrong(name, says, **answers):
    return Wrong('uptraining', name, says, answers)


WRONG = [
    wrong('strided', 'not every so many', pool=each(dealt_out)),
    wrong('rows', 'neighbouring rows are averaged', pool=each(
        lambda a, hd, G: a.reshape(G * hd, -1, *a.shape[1:]).mean(1))),
    wrong('wrong axis', 'the columns are what comes in', pool=each(
        lambda a, hd, G: columns(a, hd, G) if a.ndim == 2 else a)),
    wrong('sum', 'heads are added up',
          pool=changed(new=lambda heads: heads.sum(1))),
    wrong('W_q too', 'W_q is changed',
          pool=changed(names=('W_q', 'W_k', 'W_v'))),
    wrong('K without V', 'values are shared, too',
          pool=changed(names=('W_k',))),
    wrong('V without K', 'W_k.weight is as it was',
          pool=changed(names=('W_v',))),
    wrong('biases forgotten', 'one number for each row of its weight',
          pool=changed(bias=False)),
    wrong('the first', 'asked for is the mean of all', pool=pick),
    wrong('only what is new', 'is missing: the new model',
          pool=lambda weights, hd, G: {
              name: a for name, a in convert(weights, hd, G).items()
              if 'W_k' in name or 'W_v' in name}),
    wrong('parent changed', 'the weights that came in are changed',
          pool=in_place),
    wrong('all copied out', 'heads of width 2 are asked for', pool=changed(
        new=lambda heads: np.broadcast_to(
            heads.mean(1, keepdims=True), heads.shape))),
    wrong('no return', 'None came',
          pool=lambda weights, hd, G: weights.keys() and None),
    wrong('the first of all', 'the first heads of the model',
          pick=each(lambda a, hd, G: a[:G * hd])),
    wrong('the last', 'the last head of each group',
          pick=changed(new=lambda heads: heads[:, -1])),
    wrong('the mean', 'asked for is its first head', pick=convert),
    wrong('output too', 'only keys and values are shared',
          pick=lambda weights, hd, G: pick(weights, hd, G, names=(
              'W_k', 'W_v', 'W_o'))),
    wrong('keys of all heads', 'W_k.weight is as it was',
          pick=lambda weights, hd, G: pick(weights, hd, G, names=('W_v',))),
    wrong('perplexity', 'guessing evenly among the 28',
          before={'parent': 5.5, 'mean': 24, 'first': 41}),
    wrong('the parent again', 'the loss of the parent, to the last',
          before={**BEFORE, 'mean': 1.7}),
    wrong('one conversion twice', 'both conversions have one loss',
          before={**BEFORE, 'first': 3.18}),
    wrong('steps taken before', 'is better than its parent',
          before={'parent': 2.3, 'mean': 2.18, 'first': 2.21}),
    wrong('the optimizer of the parent', 'the steps did not help',
          after={**AFTER, 'mean': 3.18}),
    wrong('a few steps from scratch', 'as many as both trainings',
          after={**AFTER, 'scratch': 2.77}),
    wrong('perplexities', 'after training, and worse than guessing',
          after={'mean': 9.1, 'scratch': 5.4}),
    wrong('a share', 'less than half the loss of the parent',
          after={**AFTER, 'scratch': 0.06}),
    wrong('one model twice', 'is one measured twice',
          after={'mean': 1.73, 'scratch': 1.73}),
    wrong('half done', 'still to do: scratch', after={'mean': 2.18,
                                                      'scratch': ...}),
]
