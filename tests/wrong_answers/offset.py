"""Lesson 01: steps that forget a position, in both backends."""

import functools

import backends  # noqa: F401 (it has JAX compile quickly)
import jax
import jax.numpy as jnp
import torch

from d2l_ext import jax as d2l_jax
from d2l_ext import torch as d2l_torch

from . import Wrong


def torch_step(attention, X, cache, query=lambda S: 0, key=lambda S: 0,
               keep=True):
    """query, key: positions of the first new token, S cached."""
    S = cache['k'].shape[2] if cache else 0
    q, k, v = attention.project(X, offset=query(S))
    k = attention.project(X, offset=key(S))[1]
    if cache and keep:
        k, v = (torch.cat([cache[name], new], dim=2)
                for name, new in (('k', k), ('v', v)))
    cache['k'], cache['v'] = k.clone(), v.clone()
    scores = q @ k.transpose(2, 3) * q.shape[-1]**-0.5
    seen = torch.ones(scores.shape[2:]).tril(S).bool()
    Y = scores.masked_fill(~seen, -1e9).softmax(-1) @ v
    return attention.W_o(Y.transpose(1, 2).flatten(2))


def jax_step(attention, X, ks, vs, t, query=lambda t: 0, key=lambda t: 0):
    q, _, v = attention.project(X, offset=query(t))
    k = attention.project(X, offset=key(t))[1]
    ks, vs = (jax.lax.dynamic_update_slice(x, new, (0, t, 0, 0))
              for x, new in ((ks, k), (vs, v)))
    rows, slots = jnp.arange(X.shape[1]), jnp.arange(ks.shape[1])
    mask = (slots <= t + rows[:, None])[None, None]
    Y = jax.nn.dot_product_attention(q, ks, vs, mask=mask)
    return attention.W_o(Y.reshape(X.shape)), ks, vs


def torch_unrotated(attention, X, cache):
    attention.rope = False
    return torch_step(attention, X, cache)


def torch_at_one(attention, X, cache):
    one = dict.fromkeys(('query', 'key'), lambda S: min(S, 1))
    return torch_step(attention, X, cache, **one)


def jax_unrotated(attention, X, ks, vs, t):
    attention.rope = False
    Y, ks, vs = jax_step(attention, X, ks, vs, t)
    attention.rope = True
    return Y, ks, vs


def jax_at_one(attention, X, ks, vs, t):
    one = dict.fromkeys(('query', 'key'), lambda t: jnp.minimum(t, 1))
    return jax_step(attention, X, ks, vs, t, **one)


def position(S):
    return S


STEPS = {'torch': (d2l_torch.try_step, torch_step),
         'jax': (d2l_jax.try_step, jax_step)}
REST = dict(deviation=0.5, to_prefix=lambda p, j: -j,
            to_decoded=lambda p, i: 0, losses=dict(correct=3.3, faulty=5.2))
RIGHT = {('missing-offset', backend): dict(step=run(step), **REST)
         for backend, (run, step) in STEPS.items()}
OTHER = []  # the solutions write the step otherwise


def wrong(name, says, **answers):
    return Wrong('missing-offset', name, says, answers, 'torch')


def wrong_step(name, says, torch_answer, jax_answer=None):
    """For both backends: arguments of the steps above, or functions."""
    for backend, answer in (('torch', torch_answer),
                            ('jax', jax_answer or torch_answer)):
        run, step = STEPS[backend]
        if isinstance(answer, dict):
            answer = functools.partial(step, **answer)
        yield Wrong('missing-offset', name, says, dict(step=run(answer)),
                    backend)


def wrong_losses(name, says, correct, faulty):
    return wrong(name, says, losses=dict(correct=correct, faulty=faulty))


WRONG = [
    *wrong_step('the correct step', 'that is the correct step',
                dict(query=position, key=position)),
    *wrong_step('query only', 'only the query is at position 0',
                dict(key=position)),
    *wrong_step('key only', 'only the keys are at position 0',
                dict(query=position)),
    *wrong_step('nothing rotated', 'the prompt is not rotated',
                torch_unrotated, jax_unrotated),
    *wrong_step('at 1', 'are at position 1', torch_at_one, jax_at_one),
    wrong('cache lost', 'the ones of before are lost',
          step=d2l_torch.try_step(functools.partial(torch_step, keep=False))),
    wrong('rounding', 'no more than rounding', deviation=1e-6),
    wrong('negative', 'is not negative', deviation=-0.5),
    wrong('far too large', 'larger than the outputs', deviation=300),
    wrong('the correct offset', 'the offset in the correct cache; at which '
          'position is', to_prefix=lambda p, j: p - j),
    wrong('sign', 'the sign: offset is', to_prefix=lambda p, j: j),
    wrong('both at 0', 'the keys of the prompt are not at 0',
          to_prefix=lambda p, j: 0),
    wrong('turned around', 'with the sign turned around',
          to_prefix=lambda p, j: j - p),
    wrong('correct among decoded', 'at which positions are',
          to_decoded=lambda p, i: p - i),
    wrong('key at its place', 'the key of an earlier decoded token',
          to_decoded=lambda p, i: -i),
    wrong('query at its place', 'the query of the newest token',
          to_decoded=lambda p, i: p),
    wrong_losses('exchanged', 'are the two exchanged', 5.2, 3.3),
    wrong_losses('equal', 'the mistake did not act', 3.3, 3.3),
    wrong_losses('hardly acts', 'the mistake hardly acts', 3.3, 3.33),
    wrong_losses('perplexities', 'Is it a perplexity', 27.1, 181.3),
    wrong_losses('sums', 'a sum over tokens', 158.4, 249.6),
    wrong_losses('log probabilities', 'a loss is not negative', -3.3, -5.2),
    wrong_losses('targets not shifted', 'little better than a guess', 9.8,
                 10.4),
    wrong_losses('targets already read', 'that the model has not read yet',
                 0.2, 1.4),
    wrong_losses('one is a perplexity', 'taken in the same way', 3.3, 181.3),
    wrong_losses('one of two', 'still to do: faulty', 3.3, ...),
]
