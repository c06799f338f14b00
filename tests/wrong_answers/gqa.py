"""Lesson 04: steps of a layer with shared heads, in both backends."""

import functools

import backends  # noqa: F401 (it has JAX compile quickly)
import jax
import jax.numpy as jnp
import torch
from torch.nn import functional as F

from d2l_ext import jax as d2l_jax
from d2l_ext import torch as d2l_torch

from . import Wrong

TORCH, JAX = d2l_torch.try_step, d2l_jax.try_step


def torch_step(attention, X, cache, offset=lambda S: S, tiled=False,
               scale=1.0, mask=True, aligned=True, keep=True):
    """Each argument but the first three can be set wrong.

    As it stands it reads shared heads where they lie: queries are in groups,
    (B, G, r, T, hd), and so are their scores.
    """
    S = cache['k'].shape[2] if cache else 0
    q, k, v = attention.project(X, X, X, offset=offset(S))
    if cache and keep:
        k, v = (torch.cat([cache['k'], k], 2), torch.cat([cache['v'], v], 2))
    cache['k'], cache['v'] = k, v
    G = k.shape[1]
    q = (q.unflatten(1, (-1, G)).transpose(1, 2) if tiled
         else q.unflatten(1, (G, -1)))
    scores = torch.einsum('bgrtd,bgsd->bgrts', q, k)
    scores = scores * q.shape[-1]**-0.5 * scale
    seen = torch.ones(scores.shape[3:]).tril(S if aligned else 0).bool()
    if mask:
        scores = scores.masked_fill(~seen, -1e9)
    Y = torch.einsum('bgrts,bgsd->bgrtd', scores.softmax(-1), v)
    Y = Y.transpose(1, 2) if tiled else Y
    return attention.W_o(Y.flatten(1, 2).transpose(1, 2).flatten(2))


def torch_reads_copies(attention, X, cache, copy=None):
    """Right numbers; what is kept is small, what is read is not."""
    S = cache['k'].shape[2] if cache else 0
    q, k, v = attention.project(X, X, X, offset=S)
    if cache:
        k, v = (torch.cat([cache['k'], k], 2), torch.cat([cache['v'], v], 2))
    cache['k'], cache['v'] = k, v
    r = q.shape[1] // k.shape[1]
    k, v = ((copy or repeat)(x, r) for x in (k, v))
    seen = torch.ones(q.shape[2], k.shape[2]).tril(S).bool()
    Y = F.scaled_dot_product_attention(q, k, v, seen)
    return attention.W_o(Y.transpose(1, 2).flatten(2))


def repeat(x, r):
    return x.repeat_interleave(r, 1)


def expand(x, r):
    return x[:, :, None].expand(-1, -1, r, -1, -1).flatten(1, 2)


def index(x, r):
    return x[:, torch.arange(x.shape[1] * r) // r]


def stack(x, r):
    return torch.stack(r * [x], dim=2).reshape(len(x), -1, *x.shape[2:])


def torch_fused(attention, X, cache):
    """The framework groups the heads."""
    S = cache['k'].shape[2] if cache else 0
    q, k, v = attention.project(X, X, X, offset=S)
    if cache:
        k, v = (torch.cat([cache['k'], k], 2), torch.cat([cache['v'], v], 2))
    cache['k'], cache['v'] = k, v
    seen = torch.ones(q.shape[2], k.shape[2]).tril(S).bool()
    Y = F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
    return attention.W_o(Y.transpose(1, 2).flatten(2))


def torch_by_heads(attention, X, cache):
    """One query head after the other."""
    S = cache['k'].shape[2] if cache else 0
    q, k, v = attention.project(X, X, X, offset=S)
    if cache:
        k, v = (torch.cat([cache['k'], k], 2), torch.cat([cache['v'], v], 2))
    cache['k'], cache['v'] = k, v
    r = q.shape[1] // k.shape[1]
    seen = torch.ones(q.shape[2], k.shape[2]).tril(S).bool()
    Y = [F.scaled_dot_product_attention(q[:, h], k[:, h // r], v[:, h // r],
                                        seen) for h in range(q.shape[1])]
    return attention.W_o(torch.cat(Y, dim=-1))


def torch_own(attention, X, cache):
    return attention.forward_step(X, cache)


def torch_own_by_class(attention, X, cache):
    return type(attention).forward_step(attention, X, cache=cache)


def jax_own(attention, X, ks, vs, t):
    Y, ks, vs = attention.forward_step(X, ks[None], vs[None], 0, t)
    return Y, ks[0], vs[0]


def jax_own_by_class(attention, X, ks, vs, t):
    Y, ks, vs = type(attention).forward_step(attention, X, ks[None],
                                             vs[None], i=0, t=t)
    return Y, ks[0], vs[0]


def jax_step(attention, X, ks, vs, t, offset=lambda t: t, tiled=False,
             scale=1.0, mask=True, aligned=True):
    q, k, v = attention.project(X, X, X, offset=offset(t))
    ks, vs = (jax.lax.dynamic_update_slice(x, new, (0, t, 0, 0))
              for x, new in ((ks, k), (vs, v)))
    G = k.shape[2]
    q = (q.reshape(*q.shape[:2], -1, G, q.shape[-1]).swapaxes(2, 3) if tiled
         else q.reshape(*q.shape[:2], G, -1, q.shape[-1]))
    scores = jnp.einsum('btgrd,bsgd->bgrts', q, ks)
    scores = scores * q.shape[-1]**-0.5 * scale
    rows, slots = jnp.arange(X.shape[1]), jnp.arange(ks.shape[1])
    last = rows[:, None] if mask else X.shape[1] - 1
    scores = jnp.where(slots <= last + (t if aligned else 0), scores, -1e9)
    Y = jnp.einsum('bgrts,bsgd->btgrd', jax.nn.softmax(scores), vs)
    Y = Y.swapaxes(2, 3) if tiled else Y
    return attention.W_o(Y.reshape(X.shape)), ks, vs


def jax_reads_copies(attention, X, ks, vs, t):
    """Right numbers; what is kept is small, what is read is not."""
    q, k, v = attention.project(X, X, X, offset=t)
    ks, vs = (jax.lax.dynamic_update_slice(x, new, (0, t, 0, 0))
              for x, new in ((ks, k), (vs, v)))
    rows, slots = jnp.arange(X.shape[1]), jnp.arange(ks.shape[1])
    mask = (slots <= t + rows[:, None])[None, None]
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (ks, vs))
    Y = jax.nn.dot_product_attention(q, k, v, mask=mask)
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


RIGHT = {('cached-gqa', 'torch'): dict(step=TORCH(torch_step),
                                       difference=3e-7),
         ('cached-gqa', 'jax'): dict(step=JAX(jax_step), difference='3e-7')}
# the solutions write it otherwise, with groups as rows
OTHER = [('cached-gqa', name, dict(step=TORCH(step)), 'torch') for name, step
         in (('fused', torch_fused), ('head by head', torch_by_heads))]


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
    *wrong('copies are read', 'are copied out to all query heads',
           torch_reads_copies, jax_reads_copies),
    *[each for copy in (expand, index, stack) for each in wrong(
        f'copies are read, {copy.__name__}',
        'are copied out to all query heads',
        functools.partial(torch_reads_copies, copy=copy), 'none')],
    *wrong('the own step', 'forward_step is what the exercise asks for',
           torch_own, jax_own),
    *wrong('the own step by its class',
           'forward_step is what the exercise asks for',
           torch_own_by_class, jax_own_by_class),
    *wrong('only the new', 'the ones of before are lost',
           lambda attention, X, cache: torch_step(attention, X, cache,
                                                  keep=False),
           jax_replaces),
    *wrong('no values', 'there is no v', torch_no_values, 'none'),
    *wrong('no return', 'there is no output', 'none', jax_no_return),
    *wrong('traced slice', 'raised IndexError', 'none', jax_slices),
    *(Wrong('cached-gqa', name, says, dict(difference=value), backend)
      for backend in ('torch', 'jax') for name, says, value in (
          ('one cache for all blocks', 'far more than rounding', 2.31),
          ('not absolute', 'is not negative', -0.4)))
]
