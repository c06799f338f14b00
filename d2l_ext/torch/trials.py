"""Runs what a reader wrote for an exercise on arrays of NumPy."""

import functools
from unittest import mock

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .device import try_gpu
from .gpt import GPT
from .saved import GQAAttention
from .weights import set_weights

__all__ = ['try_step', 'try_arrays', 'try_latents', 'try_rolling']


def written_by_the_reader(*args, **kwargs):
    raise NotImplementedError('forward_step is what the exercise asks for')


def without_own_step(attention):
    """Within, the package's own step cannot be called, nor by its class."""
    return mock.patch.object(type(attention), 'forward_step',
                             written_by_the_reader, create=True)


class Sizes(TorchFunctionMode):
    """The sizes of all tensors made that lie in memory of their own size.

    An expanded view is not in it, nor what a function of torch makes within.
    """

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for x in found if isinstance(found, (tuple, list)) else [found]:
            if torch.is_tensor(x):
                held = x.untyped_storage().nbytes() // x.element_size()
                if held >= x.numel():
                    self.seen.add(x.numel())
        return found


def make_attention(case):
    """The layer of a case, with its weights."""
    attention = (GPT.CausalAttention(case.D, case.H) if case.G is None else
                 GQAAttention(case.D, case.H, case.G, rope=True))
    set_weights(attention, case.weights())
    return attention.to(try_gpu()).eval()


def try_step(step):
    """A cached step as a function of a case, for `attempt`.

    step(attention, X, cache) as in the exercises. The function returns what
    came out for each chunk, (k, v) after it, (B, S, G, hd) or None, and the
    sizes of all arrays that the last chunk made.
    """
    if not callable(step):
        return step

    @functools.wraps(step)
    def trial(case):
        attention, cache, ys, caches = make_attention(case), {}, [], []
        X = from_numpy(case.inputs())
        with torch.inference_mode(), without_own_step(attention):
            for x in X.split(case.chunks, dim=1):
                with Sizes() as sizes:
                    ys.append(step(attention, x, cache))
                caches.append([rows(cache.get(name)) for name in 'kv'])
        return ys, caches, sizes.seen
    return trial


def rows(x):
    """A copy of keys or values as (B, S, G, hd), to survive the next step."""
    x = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
    return x.transpose(1, 2).clone() if torch.is_tensor(x) and x.ndim == 4 \
        else x


def try_arrays(function):
    """A function of arrays as one of NumPy's, for `attempt`.

    Numbers pass as they are; what comes back is read by the check.
    """
    if not callable(function):
        return function

    @functools.wraps(function)
    def trial(*values):
        with torch.inference_mode():
            return function(*map(from_numpy, values))
    return trial


def from_numpy(value):
    """An array as a tensor of its own; a number as it is."""
    return (torch.tensor(value, device=try_gpu())
            if isinstance(value, np.ndarray) else value)


class Shapes(TorchDispatchMode):
    """The shapes of all that is made in a `with` block."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen |= {tuple(x.shape) for x in pytree.tree_leaves(result)
                      if torch.is_tensor(x)}
        return result


def try_latents(function):
    """As `try_arrays`; returns the result, and the shapes made on the way."""
    if not callable(function):
        return function
    run = try_arrays(function)

    @functools.wraps(function)
    def trial(*values):
        with Shapes() as shapes:
            result = run(*values)
        return result, shapes.seen
    return trial


def try_rolling(roll):
    """A rolling cache as a function of (s, w, prompt, new), for `attempt`.

    roll(cache, k, v, s, w) as in the exercise. Rows of k and v carry their
    position and its negative; returns those held after the prompt and after
    each new token, a pair of lists each.
    """
    if not callable(roll):
        return roll

    @functools.wraps(roll)
    def trial(s, w, prompt, new):
        cache, held = {}, []
        for chunk in (range(prompt), *([t] for t in range(prompt,
                                                          prompt + new))):
            x = torch.tensor([*chunk], dtype=torch.float32,
                             device=try_gpu())[None, None, :, None]
            k = x.expand(1, 2, -1, 4).contiguous()
            roll(cache, k, -k, s, w)
            held.append(tuple(positions(cache.get(name)) for name in 'kv'))
        return held
    return trial


def positions(x):
    """The numbers that rows of keys or values carry, now; None for none."""
    if x is None:
        return None
    x = torch.as_tensor(x)
    if x.ndim != 4 or (*x.shape[:2], x.shape[3]) != (1, 2, 4):
        raise ValueError(f'the cache holds rows of shape {tuple(x.shape)}; '
                         'expected (B, G, S, hd), here (1, 2, S, 4)')
    return x[0, 0, :, 0].tolist()
