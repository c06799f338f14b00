"""Lesson 05: attention from latents, and directions of another passage.

What both frameworks call alike is written once, with `xp` for them.
"""

import functools
from types import SimpleNamespace

import backends  # noqa: F401 (it has JAX compile quickly)
import jax
import jax.numpy as jnp
import torch

from d2l_ext import jax as d2l_jax
from d2l_ext import torch as d2l_torch

from . import Wrong

XP = {'torch': SimpleNamespace(einsum=torch.einsum, softmax=torch.softmax,
                               svd=torch.linalg.svd, d2l=d2l_torch),
      'jax': SimpleNamespace(einsum=jnp.einsum, softmax=jax.nn.softmax,
                             svd=jnp.linalg.svd, d2l=d2l_jax)}


def absorbed(xp, q, c, U_K, U_V, scale=None, left='hd,hrd->hr', up=None,
             key=True, value=True, weights=False, extra=0, late=0, heads=None):
    """Scores and outputs; arguments from scale on can be set wrong."""
    if heads:
        U_K, U_V = heads(U_K, U_V)
    folded = xp.einsum(left, q, U_K) if key else q
    scores = (xp.einsum('hr,sr->hs', folded, c) + extra) * (
        q.shape[1]**-0.5 if scale is None else scale(q.shape[1], c.shape[1]))
    A = xp.softmax(scores, -1) + late
    out = xp.einsum('hs,sr->hr', A, c)
    if value:
        out = xp.einsum(up or 'hr,hrd->hd', out, U_V)
    return (A if weights else scores), out


def with_keys(xp, q, c, U_K, U_V):
    """The right numbers, from keys and values that are made first."""
    K, V = (xp.einsum('sr,hrd->hsd', c, U) for U in (U_K, U_V))
    scores = xp.einsum('hd,hsd->hs', q, K) * q.shape[1]**-0.5
    return scores, xp.einsum('hs,hsd->hd', xp.softmax(scores, -1), V)


def shared(xp, q, q_R, c, k_R, U_K, U_V, scale=None, use=True, own=False,
           late=False):
    """With a rotary part; the last four arguments can be set wrong."""
    d, R = q.shape[1], q_R.shape[1]
    product = xp.einsum('hd,sd->hs', q_R, k_R) if use else 0
    factor = (d + R)**-0.5 if scale is None else scale(d, R)
    if own:
        product, factor = product * (d / R)**0.5, d**-0.5
    return absorbed(xp, q, c, U_K, U_V, lambda *_: factor,
                    **({'late': xp.softmax(product * factor, -1)} if late
                       else {'extra': product}))


def basis(xp, fit, r, extra=0, rows=False, values=False, side='right',
          last=False, centred=False):
    """Columns; the arguments after r can be set wrong."""
    U, S, Vh = xp.svd(fit - fit.mean(0) if centred else fit,
                      full_matrices=False)
    if side == 'left':
        return U[:, :r]
    if side == 'transposed':
        return Vh[:, :r]
    if side == 'whole':
        return (U[:, :r] * S[:r]) @ Vh[:r]
    V = Vh[-r:] if last else Vh[:r + extra]
    return (V * S[:r, None] if values else V) if rows else (
        V.T * S[:r] if values else V.T)


def project(xp, M, V, own=False, coordinates=False, rest=False):
    if own:
        V = xp.svd(M, full_matrices=False)[2][:V.shape[1]].T
    found = M @ V if coordinates else M @ V @ V.T
    return M - found if rest else found


LOSSES = {'full': 3.09, 'oracle': {256: 3.19, 192: 3.29, 128: 3.60},
          'fixed': {256: 3.29, 192: 3.58, 128: 4.01}}
NUMBERS = dict(queries={'rotated': 1000, 'separate': 1},
               elements={'MHA': 32768, 'MLA': 576},
               flops={'MHA': '65,536', 'MLA': '278.5 kFLOP'}, heads='9/4',
               per_element={'MHA': 2.0, 'MLA': '483.6'})
RIGHT = {}
for backend, xp in XP.items():
    RIGHT['absorbed', backend] = dict(
        latent=xp.d2l.try_latents(functools.partial(absorbed, xp)),
        rotary=xp.d2l.try_latents(functools.partial(shared, xp)), **NUMBERS)
    RIGHT['fixed-basis', backend] = dict(
        basis=xp.d2l.try_arrays(functools.partial(basis, xp)),
        project=xp.d2l.try_arrays(functools.partial(project, xp)),
        loss=LOSSES)
OTHER = []  # the solutions write it otherwise, with matrix products


def wrong(exercise, name, says, part, answer, adapter='', function=None):
    """For both backends: arguments of a function above, or an answer."""
    for backend, xp in XP.items():
        given = answer
        if adapter:
            call = functools.partial(function, xp, **answer)
            given = getattr(xp.d2l, adapter)(call)
        yield Wrong(exercise, name, says, {part: given}, backend)


def latent(name, says, function=absorbed, part='latent', **answer):
    return wrong('absorbed', name, says, part, answer, 'try_latents',
                 function)


def rotary(name, says, **answer):
    return latent(name, says, shared, 'rotary', **answer)


def counted(name, says, **answer):
    (part, value), = answer.items()
    return wrong('absorbed', name, says, part, value)


def directions(name, says, **answer):
    return wrong('fixed-basis', name, says, 'basis', answer, 'try_arrays',
                 basis)


def projected(name, says, **answer):
    return wrong('fixed-basis', name, says, 'project', answer, 'try_arrays',
                 project)


def losses(name, says, **fixed):
    return wrong('fixed-basis', name, says, 'loss', {
        **LOSSES, 'fixed': {int(r[1:]): x for r, x in fixed.items()}})


WRONG = [
    *latent('scaled by the latent', 'scaled by the width of the latent',
            scale=lambda d, r: r**-0.5),
    *latent('no scale', 'the scores are not scaled', scale=lambda d, r: 1.0),
    *latent('U_K transposed', 'U_K is applied from its other side',
            left='hr,hrd->hd'),
    *latent('U_V transposed', 'U_V is applied from its other side',
            up='hd,hrd->hr'),
    *latent('no U_K', 'U_K is missing', key=False),
    *latent('no U_V', 'U_V is missing', value=False),
    *latent('one matrix for both', 'they have a matrix of their own',
            heads=lambda K, V: (K, K)),
    *latent('the first head for all', 'the matrices of the first one',
            heads=lambda K, V: (K * 0 + K[:1], V * 0 + V[:1])),
    *latent('weights', 'the weights came where scores are asked for',
            weights=True),
    *latent('keys formed', 'keys or values of the cached tokens are formed',
            with_keys),
    *latent('no pair', 'is no pair', lambda xp, *arrays: arrays[0]),
    *rotary('scale of the head', 'that of the part without rotation',
            scale=lambda d, R: d**-0.5),
    *rotary('left out', 'the rotary part of the scores is missing',
            use=False),
    *rotary('two scales', 'each part has a scale of its own', own=True),
    *rotary('after the softmax', 'added after the softmax', late=True),
    *rotary('no scale', 'the scores are not scaled', scale=lambda d, R: 1.0),
    *counted('one rotation for all', 'is it the same for all cached tokens',
             queries={'rotated': 1, 'separate': 1}),
    *counted('nothing gained', 'what is folded meets latents',
             queries={'rotated': 1000, 'separate': 1000}),
    *counted('rotary folded', 'not folded with anything',
             queries={'rotated': 1000, 'separate': 2}),
    *counted('K without V', 'a key *and* a value for each head',
             elements={'MHA': 16384, 'MLA': 576}),
    *counted('no rotary part', 'the rotary part of the key is missing',
             elements={'MHA': 32768, 'MLA': 512}),
    *counted('two latents', 'keys and values are made from the same one',
             elements={'MHA': 32768, 'MLA': 1088}),
    *counted('rotary per head', 'the rotary part of the key is one for all',
             elements={'MHA': 32768, 'MLA': 512 + 128 * 64}),
    *counted('MAC for FLOP', 'with its addition is two FLOPs',
             flops={'MHA': 32768, 'MLA': 139264}),
    *counted('scores only', 'the weighted sum over latents is missing',
             flops={'MHA': 65536, 'MLA': 147456}),
    *counted('rotary values', 'values have none',
             flops={'MHA': 65536, 'MLA': 294912}),
    *counted('no rotary scores', 'is missing in the scores',
             flops={'MHA': 65536, 'MLA': 262144}),
    *counted('head width', 'each query meets the whole latent',
             flops={'MHA': 65536, 'MLA': 128 * (512 + 128)}),
    *counted('one head', 'that is one head: the latent is shared',
             flops={'MHA': 65536, 'MLA': 2176}),
    *counted('keys only', 'caches a key *and* a value', heads=4.5),
    *counted('latent only', 'missing in what MLA caches', heads=2),
    *counted('saving', 'by how much MLA caches less', heads=32768 / 576),
    *counted('rounded', 'need not be a whole number', heads=3),
    *counted('upside down', 'so FLOPs stand above',
             per_element={'MHA': 0.5, 'MLA': 576 / 278528}),
    *counted('per byte', 'not per byte', per_element={'MHA': 1, 'MLA': 242}),
    *counted('elements of MHA', 'divided by the elements of MHA',
             per_element={'MHA': 2, 'MLA': 8.5}),
    *directions('left', 'these are left singular vectors', side='left'),
    *directions('one too many', 'one column too many', extra=1),
    *directions('rows', 'the vectors are the rows', rows=True),
    *directions('centred', 'the mean was taken off', centred=True),
    *directions('smallest', 'the directions that carry least', last=True),
    *directions('scaled', 'not orthonormal', values=True),
    *directions('transposed', 'comes transposed from many libraries',
                side='transposed'),
    *directions('the matrix itself', 'the rows, approximated', side='whole'),
    *projected('own directions', 'which is the oracle again', own=True),
    *projected('coordinates', 'these are the coordinates', coordinates=True),
    *projected('the rest', 'what the projection leaves out', rest=True),
    *losses('nan', 'not a finite number', r256=float('nan'), r192=3.58,
            r128=4.01),
    *wrong('fixed-basis', 'one sequence only', '(2, 3, 5)', 'project',
           lambda M, V: (V @ (V.T @ M.T)).T),
    *losses('the oracle again', 'these are the losses of the oracle',
            r256=3.19, r192=3.29, r128=3.60),
    *losses('perplexities', 'look like perplexities',
            r256=26.8, r192=35.9, r128=55.3),
    *losses('differences', 'what is added to the loss',
            r256=0.20, r192=0.49, r128=0.92),
    *losses('another passage', 'well below full attention',
            r256=2.6, r192=2.7, r128=2.8),
    *losses('better than the oracle', 'below the oracle',
            r256=3.0, r192=3.1, r128=3.3),
    *losses('upside down', 'the loss rises with the rank',
            r256=4.01, r192=3.58, r128=3.7),
    *losses('keys for values', 'worse than guessing evenly',
            r256=12.2, r192=12.5, r128=12.9),
    *losses('half done', 'still to do: 128', r256=3.29, r192=3.58),
]
