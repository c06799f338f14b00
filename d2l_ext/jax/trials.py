"""Runs what a reader wrote for an exercise on arrays of NumPy."""

import functools
import math
from unittest import mock

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .gpt import GPT
from .saved import GQAAttention
from .weights import set_weights

__all__ = ['try_step', 'try_arrays', 'try_latents', 'try_rolling']

SPARE = 3  # slots that stay empty
# to compile takes longer than the few calls of a check
QUICK = dict(xla_cpu_use_fusion_emitters=False,
             xla_backend_optimization_level=0,
             xla_llvm_disable_expensive_passes=True)


def written_by_the_reader(*args, **kwargs):
    raise NotImplementedError('forward_step is what the exercise asks for')


def without_own_step(attention):
    """Within, the package's own step cannot be called, nor by its class."""
    return mock.patch.object(type(attention), 'forward_step',
                             written_by_the_reader, create=True)


def sizes(jaxpr):
    """The sizes of all arrays that a traced function makes."""
    return {math.prod(shape) for shape in shapes_of(jaxpr)}


def make_attention(case):
    """The layer of a case, with its weights; a new one at every call."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: (
        GPT.CausalAttention(case.D, case.H) if case.G is None else
        GQAAttention(case.D, case.H, case.G, rope=True))))
    # to draw weights that are replaced at once would take seconds
    attention = nnx.merge(graphdef, jax.tree.map(
        lambda x: jnp.asarray(np.zeros(x.shape, x.dtype)), state))
    set_weights(attention, case.weights())
    return attention


def try_step(step):
    """A cached step as a function of a case, for `attempt`.

    step(attention, X, ks, vs, t) as in the exercises, compiled with t
    traced. The function returns what came out for each chunk, (k, v) after
    it, (B, S, G, hd) or None, and the sizes of all arrays that the last
    chunk makes.
    """
    if not callable(step):
        return step

    @functools.wraps(step)
    def trial(case):
        attention, X, ys, caches, t = (make_attention(case), case.inputs(),
                                       [], [], 0)
        ks = vs = np.zeros((case.B, X.shape[1] + SPARE, case.kv_heads,
                            case.hd), np.float32)
        compiled = jax.jit(step, compiler_options=QUICK)
        with without_own_step(attention):
            for T in case.chunks:
                args = attention, X[:, t:t + T], ks, vs, t
                made = sizes(compiled.trace(*args).jaxpr.jaxpr)
                y, ks, vs = values(compiled(*args), 'Y, ks, vs')
                t += T
                ys.append(y)
                caches.append([rows(x, t, X.shape[1] + SPARE)
                               for x in (ks, vs)])
        return ys, caches, made
    return trial


def rows(x, t, slots):
    """The filled rows of a buffer, or all of what is no such buffer."""
    whole = getattr(x, 'ndim', 0) == 4 and x.shape[1] == slots
    return np.asarray(x)[:, :t] if whole else x


def try_arrays(function):
    """A function of arrays as one of NumPy's, for `attempt`.

    Numbers pass as they are; what comes back is read by the check.
    """
    if not callable(function):
        return function

    @functools.wraps(function)
    def trial(*values):
        return function(*map(from_numpy, values))
    return trial


def from_numpy(value):
    """An array as JAX's; a number as it is."""
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value


def shapes_of(jaxpr):
    """The shapes of all that is made in a traced function."""
    shapes = set()
    for equation in jaxpr.eqns:
        shapes |= {tuple(x.aval.shape) for x in equation.outvars
                   if hasattr(x.aval, 'shape')}
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            shapes |= shapes_of(inner)
    return shapes


def try_latents(function):
    """As `try_arrays`; returns the result, and the shapes made on the way."""
    if not callable(function):
        return function
    run = try_arrays(function)

    @functools.wraps(function)
    def trial(*values):
        result = run(*values)
        try:
            shapes = shapes_of(jax.make_jaxpr(run)(*values).jaxpr)
        except Exception:  # what cannot be traced is judged by its numbers
            shapes = set()
        return result, shapes
    return trial


def try_rolling(roll):
    """A rolling cache as a function of (s, w, prompt, new), for `attempt`.

    roll(ks, vs, k, v, t, s, w) as in the exercise. Rows of k and v carry
    their position and its negative; returns those held after the prompt and
    after each new token, a pair of lists each.
    """
    if not callable(roll):
        return roll

    @functools.wraps(roll)
    def trial(s, w, prompt, new):
        slots, held = s + w, []
        ks, vs = jnp.full((2, 1, slots, 2, 4), jnp.inf)
        for chunk in (range(prompt), *([t] for t in range(prompt,
                                                          prompt + new))):
            x = jnp.array([*chunk], dtype=jnp.float32)[None, :, None, None]
            k, t = jnp.broadcast_to(x, (1, len(chunk), 2, 4)), chunk[0]
            ks, vs = values(roll(ks, vs, k, -k, jnp.int32(t), s, w), 'ks, vs')
            filled = min(t + len(chunk), slots)
            held.append(tuple(positions(x, filled, slots) for x in (ks, vs)))
            if ks is None or vs is None:
                break
        return held
    return trial


def values(returned, names):
    """What a function returned under these names; all None for None."""
    count = len(names.split(', '))
    if returned is None:
        return count * [None]
    if not isinstance(returned, (tuple, list)) or len(returned) != count:
        raise ValueError(f'asked for is `return {names}`, {count} values')
    return returned


def positions(x, filled, slots):
    """The numbers that the filled rows carry; None for none."""
    if x is None:
        return None
    x = jnp.asarray(x)
    if x.ndim != 4 or (x.shape[0], *x.shape[2:]) != (1, 2, 4):
        raise ValueError(f'the buffer holds rows of shape {x.shape}; '
                         'expected (B, S, G, hd), here (1, S, 2, 4)')
    return (x[0, :filled] if x.shape[1] == slots else x[0])[:, 0, 0].tolist()
