"""What memory is used: by the process or the card, and by one step."""

import jax

from .. import runs
from .device import try_gpu

__all__ = ['memory_in_use', 'peak_memory', 'Allocations', 'step_memory']


def memory_in_use():
    """Bytes taken now: of the GPU by JAX, else of main memory in all."""
    stats = try_gpu().memory_stats()  # None on the CPU
    return stats['bytes_in_use'] if stats else runs.resident_bytes()


def peak_memory():
    """The most that `memory_in_use` has been; None if it is not known."""
    stats = try_gpu().memory_stats()
    return stats['peak_bytes_in_use'] if stats else runs.peak_bytes()


class Allocations:
    """Bytes of the arrays made in a `with` block, while they live.

    alive(): now, also after the block. What a compiled function takes
    inside itself is no array: `step_memory` tells that.
    """

    def __init__(self):
        self.before = 0

    def __enter__(self):
        self.before = live_bytes()
        return self

    def __exit__(self, *exception):
        pass

    def alive(self):
        return live_bytes() - self.before


def live_bytes():
    return sum(x.nbytes for x in jax.live_arrays())


def step_memory(f, *args):
    """Bytes that f(*args) takes beyond its arguments, at its peak.

    Results count as well, but not in memory that donated arguments give
    them. f: a jitted function, else ValueError. It is compiled, not run:
    the compiler plans all memory beforehand.
    """
    if not hasattr(f, 'lower'):
        raise ValueError(f'f={f!r}: expected a jitted function, jax.jit(f)')
    plan = f.lower(*args).compile().memory_analysis()
    return (plan.output_size_in_bytes - plan.alias_size_in_bytes
            + plan.temp_size_in_bytes)
