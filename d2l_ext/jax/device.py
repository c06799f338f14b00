"""The device of this run, its labels, and honest timings."""

import contextlib
import statistics
import time

import jax
from flax import nnx

from .. import runs
from ..checks import check_sizes

__all__ = ['try_gpu', 'current_run', 'evaluation', 'timeit',
           'count_compilations']


def try_gpu(i=0):
    """GPU number i if there is one, else the CPU."""
    gpus = [d for d in jax.devices() if d.platform == 'gpu']
    return gpus[i] if len(gpus) > i else jax.devices('cpu')[0]


def current_run():
    """The labels of this run; `full` by default where there is a GPU."""
    return runs.current(has_gpu=jax.default_backend() == 'gpu')


@contextlib.contextmanager
def evaluation(model):
    """A view of the model without dropout; the model keeps its mode."""
    yield nnx.view(model, deterministic=True, raise_if_not_found=False)


def timeit(f, reps=10, pick=statistics.median):
    """Seconds of f(), picked from reps calls after one to warm up."""
    check_sizes(reps=reps)

    def seconds():
        start = time.perf_counter()
        jax.block_until_ready(f())  # a call returns before its work is done
        return time.perf_counter() - start
    seconds()
    return pick([seconds() for _ in range(reps)])


@contextlib.contextmanager
def count_compilations(name):
    """Count how often XLA compiles the jitted function of this name.

    Yields a list that grows by one entry, its seconds, per compilation.
    """
    seconds = []

    def listen(event, duration, fun_name='', **_):
        if 'backend_compile' in event and fun_name in (name, f'jit({name})'):
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seconds
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
