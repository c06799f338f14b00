"""Lesson 04: steps of a layer with shared heads, in both backends."""

import functools

import backends  # noqa: F401 (it has JAX compile quickly)
import jax
import jax.numpy as jnp
import torch

from d2l_ext import jax as d2l_jax
from d2l_ext import torch as d2l_torch

from . import Wrong

TORCH, JAX = d2l_torch.try_step, d2l_jax.try_step


def torch_step(attention, X, cache, offset=lambda S: S, tiled=False,
               scale=1.0, mask=True, aligned=True, keep=True):
    """Each argument but the first three can be set wrong."""
    S = cache['k'].shape[2] if cache else 0
    q, k, v = attention.project(X, X, X, offset=offset(S))
    if cache and keep:
        k, v = (torch.cat([cache['k'], k], 2), torch.cat([cache['v'], v], 2))
    cache['k'], cache['v'] = k, v
    r = q.shape[1] // k.shape[1]
    k, v = ((x.repeat(1, r, 1, 1) if tiled else x.repeat_interleave(r, 1))
            for x in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1]**-0.5 * scale
    seen = torch.ones(scores.shape[2:]).tril(S if aligned else 0).bool()
    if mask:
        scores = scores.masked_fill(~seen, -1e9)
    Y = scores.softmax(-1) @ v
    return attention.W_o(Y.transpose(1, 2).flatten(2))


def jax_step(attention, X, ks, vs, t, offset=lambda t: t, tiled=False,
             scale=1.0, mask=True, aligned=True):
    q, k, v = attention.project(X, X, X, offset=offset(t))
    ks, vs = (jax.lax.dynamic_update_slice(x, new, (0, t, 0, 0))
              for x, new in ((ks, k), (vs, v)))
    r = q.shape[2] // k.shape[2]
    k, v = ((jnp.tile(x, (1, 1, r, 1)) if tiled else jnp.repeat(x, r, 2))
            for x in (ks, vs))
    scores = jnp.einsum('bthd,bshd->bhts', q, k) * q.shape[-1]**-0.5 * scale
    rows, slots = jnp.arange(X.shape[1]), jnp.arange(ks.shape[1])
    last = rows[:, None] if mask else X.shape[1] - 1
    scores = jnp.where(slots <= last + (t if aligned else 0), scores, -1e9)
    Y = jnp.einsum('bhts,bshd->bthd', jax.nn.softmax(scores), v)
    return attention.W_o(Y.reshape(X.shape)), ks, vs


def torch_repeats(attention, X, cache):
    """The heads are copied out before they are kept."""
    q, k, v = attention.project(X, X, X, offset=cache['k'].shape[2]
                                if cache else 0)
    r = q.shape[1] // k.shape[1]
    for name, new in (('k', k), ('v', v)):
        new = new.repeat_interleave(r, 1)
        cache[name] = (torch.cat([cache[name], new], 2) if name in cache
                       else new)
    return X


def torch_no_values(attention, X, cache):
    cache['k'] = attention.project(X, X, X)[1]
    return X


def jax_no_return(attention, X, ks, vs, t):
    attention.project(X, X, X)


def jax_slices(attention, X, ks, vs, t):
    """Cuts by a traced number."""
    return attention.W_o(X), ks[:, :t], vs


def jax_replaces(attention, X, ks, vs, t):
    return X, *attention.project(X, X, X, offset=t)[1:]


def jax_repeats(attention, X, ks, vs, t):
    """Buffers of all query heads come back."""
    return X, *(jnp.repeat(x, 3, 2) for x in (ks, vs))


RIGHT = {('cached-gqa', 'torch'): dict(step=TORCH(torch_step)),
         ('cached-gqa', 'jax'): dict(step=JAX(jax_step))}
OTHER = []  # the solutions write it otherwise, with groups as rows


def wrong(name, says, torch_answer, jax_answer=None):
    """For both backends: arguments of the steps above, or functions."""
    for backend, run, step, answer in (
            ('torch', TORCH, torch_step, torch_answer),
            ('jax', JAX, jax_step, jax_answer or torch_answer)):
        if isinstance(answer, dict):
            answer = functools.partial(step, **answer)
        if answer != 'none':
            yield Wrong('cached-gqa', name, says, dict(step=run(answer)),
                        backend)


WRONG = [
    *wrong('offset dropped', 'as if it began at position 0',
           dict(offset=lambda S: 0)),
    *wrong('tiled', 'they are not dealt out in turn', dict(tiled=True)),
    *wrong('no scale', 'not scaled by the root of the head width',
           dict(scale=2.0)),  # the root of the head width, 4
    *wrong('no mask', 'the mask is missing', dict(mask=False)),
    *wrong('mask from the first key', 'the mask begins at the first key',
           dict(aligned=False)),
    *wrong('heads repeated', 'shared keys and values were copied out',
           torch_repeats, jax_repeats),
    *wrong('only the new', 'the ones of before are lost',
           lambda attention, X, cache: torch_step(attention, X, cache,
                                                  keep=False),
           jax_replaces),
    *wrong('no values', 'there is no v', torch_no_values, 'none'),
    *wrong('no return', 'there is no output', 'none', jax_no_return),
    *wrong('traced slice', 'raised IndexError', 'none', jax_slices),
]
