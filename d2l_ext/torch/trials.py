"""Runs what a reader wrote for an exercise on arrays of NumPy."""

import functools
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from .device import try_gpu
from .gpt import GPT
from .saved import GQAAttention
from .weights import set_weights

__all__ = ['try_step']


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
        X = torch.from_numpy(case.inputs()).to(try_gpu())
        with torch.inference_mode(), without_own_step(attention):
            for x in X.split(case.chunks, dim=1):
                with Sizes() as sizes:
                    ys.append(step(attention, x, cache))
                caches.append([rows(cache.get(name)) for name in 'kv'])
        return ys, caches, sizes.seen
    return trial


def rows(x):
    """A copy of keys or values as (B, S, G, hd), to survive the next step."""
    return x.transpose(1, 2).clone() if torch.is_tensor(x) and x.ndim == 4 \
        else x
