"""The device of this run, its labels, and honest timings."""

import contextlib
import statistics
import time

import torch

from .. import runs
from ..checks import check_sizes

__all__ = ['try_gpu', 'current_run', 'evaluation', 'timeit']


def try_gpu(i=0):
    """GPU number i if there is one, else the CPU."""
    if torch.cuda.device_count() > i:
        return torch.device('cuda', i)
    return torch.device('cpu')


def current_run():
    """The labels of this run; `full` by default where there is a GPU."""
    return runs.current(has_gpu=torch.cuda.is_available())


@contextlib.contextmanager
def evaluation(model):
    """The model without dropout; afterwards in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield model.eval()
    finally:
        for module, training in modes.items():
            module.training = training


def timeit(f, reps=10, pick=statistics.median):
    """Seconds of f(), picked from reps calls after one to warm up."""
    check_sizes(reps=reps)

    def seconds():
        start = time.perf_counter()
        f()
        if torch.cuda.is_available():  # kernels run on after f returns
            torch.cuda.synchronize()
        return time.perf_counter() - start
    seconds()
    return pick([seconds() for _ in range(reps)])
