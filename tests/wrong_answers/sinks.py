"""Lesson 06: a sink as a logit, and a cache that rolls."""

import functools
from types import SimpleNamespace

import backends  # noqa: F401 (it has JAX compile quickly)
import jax.numpy as jnp
import torch

from d2l_ext import jax as d2l_jax
from d2l_ext import torch as d2l_torch

from . import Wrong

XP = {'torch': SimpleNamespace(
          exp=torch.exp, cat=torch.cat, one=lambda x: torch.tensor([x]),
          norm=lambda x: x.norm(dim=-1), log=torch.log, d2l=d2l_torch),
      'jax': SimpleNamespace(
          exp=jnp.exp, cat=jnp.concatenate, one=lambda x: jnp.array([x]),
          norm=lambda x: jnp.linalg.norm(x, axis=-1), log=jnp.log,
          d2l=d2l_jax)}


def denominator(xp, scores, V, sink, plus=None, whole=False, renewed=False):
    """Arguments after sink can be set wrong."""
    if whole:
        return as_key(xp, scores, V, sink)[0], V[0]
    e, extra = xp.exp(scores), xp.exp(xp.one(float(sink)))
    weights = e / (e.sum() + (extra if plus is None else plus(sink)))
    out = (weights[:, None] * V).sum(0)
    return weights, out / weights.sum() if renewed else out


def as_key(xp, scores, V, sink, score=lambda s: s, value=0.0, front=True,
           drop=0):
    new = xp.one(float(score(sink))), V[:1] * 0 + value
    pairs = zip(new, (scores, V[drop:]), strict=True)
    return tuple(xp.cat(pair if front else pair[::-1]) for pair in pairs)


def sink_for(xp, scores, total, turned=False, logit=True, scored=True,
             share=False):
    odds = total / (1 - total) if turned else (1 - total) / total
    if share:
        return xp.log(xp.exp(scores).sum()[None] * (1 - total))
    found = xp.exp(scores).sum()[None] * odds if scored else xp.one(odds)
    return xp.log(found) if logit else found


def shares(xp, A, V, first=64, others=1, weighted=True, means=False,
           turned=False):
    norms, out = xp.norm(V), xp.norm(A @ V)[first:]
    part = (A[first:, 0] if weighted else 1 + 0 * A[first:, 0]) * norms[0]
    found = (norms[0] / norms[others:].mean(),
             part.mean() / out.mean() if means else (part / out).mean())
    return tuple(1 / x for x in found) if turned else found


def torch_roll(cache, k, v, s, w, lead=lambda s: s, wider=0, drop=True,
               own=True, newest=True, values=True):
    """Takes rows by their numbers; the arguments after w set it wrong."""
    if cache:
        k, v = torch.cat([cache['k'], k], 2), torch.cat([cache['v'], v], 2)
    n, s = k.shape[2], lead(s)
    size = w + wider if own else max(w - s, 1)
    if drop and n > s + size:
        rows = [*range(s), *range(n - size, n)]
        if not newest:
            rows = [*range(s + size)]
        k = k[:, :, rows]
        v = v[:, :, rows] if values else v[:, :, -len(rows):]
    cache['k'], cache['v'] = k, v


def jax_roll(ks, vs, k, v, t, s, w, slot=None, values=None):
    """Writes row by row; slot, values: where to, can be set wrong."""
    for i in range(k.shape[1]):
        u = int(t) + i
        at, there = ((slot or ring)(u, s, w), (values or slot or ring)(
            u, s, w))
        ks = ks if at is None else ks.at[:, at].set(k[:, i])
        vs = vs if there is None else vs.at[:, there].set(v[:, i])
    return ks, vs


def ring(t, s, w):
    return t if t < s else s + (t - s) % w


def only_while_empty(t, s, w):
    return t if t < s + w else None


def jax_grows(ks, vs, k, v, t, s, w):
    """Puts rows in front of the buffer, so that nothing leaves."""
    ks, vs = ((x[:, :t], new) for x, new in ((ks, k), (vs, v)))
    return jnp.concatenate(ks, 1), jnp.concatenate(vs, 1)


def jax_wider(ks, vs, k, v, t, s, w):
    """One slot more than the buffer had."""
    short = ((0, 0), (0, s + w + 1 - ks.shape[1]), (0, 0), (0, 0))
    ks, vs = jax_roll(*(jnp.pad(x, short) for x in (ks, vs)), k, v, t, s,
                      w + 1)
    n = min(t + k.shape[1], s + w + 1)
    return ks[:, :n], vs[:, :n]


ROLL = {'torch': lambda **changes: d2l_torch.try_rolling(
            functools.partial(torch_roll, **changes)),
        'jax': lambda **changes: d2l_jax.try_rolling(
            functools.partial(jax_roll, **changes))}


def positions(t, s, w):
    held = [j for j in range(t + 1) if j < s or j > t - w]
    return [held.index(j) for j in held]


def original(t, s, w):
    return [j for j in range(t + 1) if j < s or j > t - w]


ON_FIRST = [0.0, 0.05, 0.4, 0.5]
NORMS = {'value': [0.9, 0.5, 0.2, 0.2], 'output': [0.01, 0.1, 0.4, 0.5]}
RIGHT = {}
for backend, xp in XP.items():
    arrays = xp.d2l.try_arrays
    RIGHT['sink-noop', backend] = dict(
        denominator=arrays(functools.partial(denominator, xp)),
        as_key=arrays(functools.partial(as_key, xp)),
        totals={'below': 0, 'above': 1},
        sink_for=arrays(functools.partial(sink_for, xp)),
        shares=arrays(functools.partial(shares, xp)), ratios=NORMS,
        mass={'from 0': ON_FIRST, 'from 100': [0.0, 0.04, 0.41, 0.5]})
    RIGHT['streaming', backend] = dict(
        roll=ROLL[backend](), cached={'mask': 3.146, 'cache': 3.14603},
        positions=positions, turns={'sink': 1, 'window': 124},
        stream={'s=4': 1.79, 's=0': 1.8, 'recompute': 1.795})


def torch_ring(cache, k, v, s, w):
    """Writes into the slot of the oldest row, in place."""
    for i in range(k.shape[2]):
        t = cache['t'] = cache.get('t', -1) + 1
        for name, x in (('k', k[:, :, i:i + 1]), ('v', v[:, :, i:i + 1])):
            if t < s + w:
                cache[name] = torch.cat([*([cache[name]] if t else []), x], 2)
            else:
                cache[name][:, :, ring(t, s, w)] = x[:, :, 0]


def shifted(scores, V, sink):
    """The largest score is taken off, in place where arrays allow it."""
    highest = scores.max()
    scores -= highest
    e = scores.exp()
    weights = e / (e.sum() + torch.exp(sink - highest))
    return weights, weights @ V


OTHER = [('streaming', 'a ring in place',
          dict(roll=d2l_torch.try_rolling(torch_ring)), 'torch'),
         ('sink-noop', 'scores changed in place',
          dict(denominator=d2l_torch.try_arrays(shifted)), 'torch'),
         ('sink-noop', 'shares as one array', dict(shares=(
             lambda A, V: torch.stack(shares(XP['torch'], *map(
                 torch.as_tensor, (A, V)))))), 'torch')]


def wrong(exercise, name, says, answer):
    for backend in XP:
        yield Wrong(exercise, name, says, answer, backend)


def noop(name, says, function, **changes):
    """One of the functions above with arguments set wrong."""
    for backend, xp in XP.items():
        call = xp.d2l.try_arrays(functools.partial(function, xp, **changes))
        yield Wrong('sink-noop', name, says, {function.__name__: call},
                    backend)


def rolled(name, says, torch_changes, jax_answer):
    """A cache in each backend; the second is arguments or a function."""
    yield Wrong('streaming', name, says,
                dict(roll=ROLL['torch'](**torch_changes)), 'torch')
    if jax_answer is not None:
        yield Wrong('streaming', name, says, dict(
            roll=d2l_jax.try_rolling(jax_answer) if callable(jax_answer)
            else ROLL['jax'](**jax_answer)), 'jax')


def streaming(name, says, **answer):
    return wrong('streaming', name, says, answer)


def sinks(name, says, **answer):
    return wrong('sink-noop', name, says, answer)


WRONG = [
    *noop('no sink', 'sum to one, as if there were no sink', denominator,
          plus=lambda s: 0),
    *noop('logit as it is', 'added to the denominator as it is', denominator,
          plus=lambda s: s),
    *noop('plus one', 'a logit of zero', denominator, plus=lambda s: 1),
    *noop('weight of the sink', 'there is a weight for the sink too',
          denominator, whole=True),
    *noop('scaled up again', 'then the sink has no effect', denominator,
          renewed=True),
    *noop('score zero', 'the score of the extra key is zero', as_key,
          score=lambda s: 0.0),
    *noop('a value', 'adds something to the output', as_key, value=1.0),
    *noop('log of it', 'put the same into the denominator', as_key,
          score=lambda s: s + 1),
    *noop('no new value', 'one key more than', as_key, drop=1),
    *sinks('always one', 'that is without a sink',
           totals={'below': 1, 'above': 1}),
    *sinks('no large sink', 'far larger than the scores',
           totals={'below': 0.5, 'above': 1}),
    *sinks('no small sink', 'far below the scores',
           totals={'below': 0, 'above': 0.5}),
    *sinks('signed', 'exponentials are positive',
           totals={'below': -1, 'above': 1}),
    *noop('share of the sink', 'what was to be left to the real', sink_for,
          turned=True),
    *noop('no logarithm', 'the sink is a logit', sink_for, logit=False),
    *noop('no scores', 'they enter too', sink_for, scored=False),
    *noop('share as it is', 'in which it stands itself', sink_for,
          share=True),
    *noop('all queries', 'all queries are counted', shares, first=0),
    *noop('one too late', 'the queries begin one too late', shares,
          first=65),
    *noop('no weight', 'there without its weight', shares, weighted=False),
    *noop('ratio of means', 'the ratio of two means', shares, means=True),
    *noop('mean of all', 'without token 0', shares, others=0),
    *noop('inverse', 'token 0 stands above', shares, turned=True),
    *sinks('one list twice', 'both lists are the same',
           ratios={'value': NORMS['value'], 'output': NORMS['value']}),
    *sinks('upside-down values', 'longer than others in most blocks',
           ratios={'value': [1.1, 2.1, 5, 5], 'output': NORMS['output']}),
    *sinks('no weight in it', 'longer than the output in most blocks',
           ratios={'value': NORMS['value'], 'output': [3, 2, 2, 1]}),
    *sinks('another key', 'next to nothing in every block',
           ratios={'value': NORMS['value'], 'output': [.01, .01, .002, .01]}),
    *sinks('a block missing', 'one number for each block',
           ratios={'value': NORMS['value'], 'output': [0.1, 0.2]}),
    *sinks('token 100', 'weight on token 100 of the old passage',
           mass={'from 0': ON_FIRST, 'from 100': [0, 0.001, 0.002, 0.01]}),
    *sinks('same passage', 'did the model read the later passage',
           mass={'from 0': ON_FIRST, 'from 100': ON_FIRST}),
    *sinks('per cent', 'lies between zero and one',
           mass={'from 0': ON_FIRST, 'from 100': [0, 5, 40, 50]}),

    *wrong('sink-noop', 'nan', 'not a finite number',
           dict(shares=lambda A, V: (float('nan'), float('nan')))),
    *wrong('sink-noop', 'half a pair', 'still to do: an output',
           dict(denominator=lambda scores, V, sink: (scores, ...))),
    *wrong('sink-noop', 'one block', 'one number for each block',
           dict(ratios={'value': [0.3], 'output': [0.2]})),
    *wrong('sink-noop', 'one list', "still to do: 'output'",
           dict(ratios={**NORMS, 'output': ...})),
    *rolled('nothing dropped', 'nothing has been dropped yet',
            dict(drop=False), jax_grows),
    *rolled('one too wide', 'the window is one too wide', dict(wider=1),
            jax_wider),
    *rolled('one too narrow', 'the window is one too narrow',
            dict(wider=-1), None),
    *rolled('sink evicted', 'a sink was evicted',
            dict(lead=lambda s: 0, wider=2),
            dict(slot=lambda t, s, w: t % (s + w))),
    *rolled('newest evicted', 'the newest token is not there',
            dict(newest=False), dict(slot=only_while_empty)),
    *rolled('sinks in the window', 'counted as part of the window',
            dict(own=False), None),
    *rolled('values apart', 'not those of the same tokens',
            dict(values=False),
            dict(values=lambda t, s, w: t % (s + w))),
    Wrong('streaming', 'clamped', 'which row does the new one replace', dict(
        roll=ROLL['jax'](slot=lambda t, s, w: min(t, s + w - 1))), 'jax'),
    Wrong('streaming', 'no return', 'there is no cache', dict(
        roll=d2l_jax.try_rolling(lambda *a: jax_roll(*a) and None)), 'jax'),
    *streaming('positions anew', 'differ by more than rounding',
               cached={'mask': 3.15, 'cache': 3.6}),
    *streaming('a perplexity', 'a perplexity here',
               cached={'mask': 3.15, 'cache': 23.34}),
    *streaming('no cache yet', "still to do: 'cache'",
               cached={'mask': 3.15, 'cache': ...}),
    *streaming('original positions', 'these are the original positions',
               positions=original),
    *streaming('modulo', 'tokens in order must have positions in order',
               positions=lambda t, s, w: [j % (s + w)
                                          for j in original(t, s, w)]),
    *streaming('from one', 'begin at zero, as the model does',
               positions=lambda t, s, w: [j + 1
                                          for j in positions(t, s, w)]),
    *streaming('newest first', 'that is the other way round',
               positions=lambda t, s, w: positions(t, s, w)[::-1]),
    *streaming('sinks twice', 'two tokens at one position',
               positions=lambda t, s, w: (
                   [*range(min(s, t + 1)), *range(max(
                       min(t + 1, s + w) - s, 0))])),
    *streaming('all but one', 'tokens that are held',
               positions=lambda t, s, w: positions(t, s, w)[1:]),
    *streaming('rotated for good', 'one position for life',
               turns={'sink': 1, 'window': 1}),
    *streaming('sinks move', 'a sink stands at the same place',
               turns={'sink': 124, 'window': 124}),
    *streaming('all slots', 'never stands where the sinks are',
               turns={'sink': 1, 'window': 128}),
    *streaming('one too few', 'where it comes in',
               turns={'sink': 1, 'window': 123}),
    *streaming('perplexities', 'worse than guessing evenly among',
               stream={'s=4': 5.9, 's=0': 6.0, 'recompute': 5.8}),
    *streaming('one stream twice', 'agree to the last digit',
               stream={'s=4': 1.7912, 's=0': 1.7912, 'recompute': 1.8}),
    *streaming('lost', 'far worse than reading the latest',
               stream={'s=4': 2.9, 's=0': 2.8, 'recompute': 1.8}),
    *streaming('short windows', 'anew is far worse than the stream',
               stream={'s=4': 1.79, 's=0': 1.8, 'recompute': 2.9}),
]
