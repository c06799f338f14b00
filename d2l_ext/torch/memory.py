"""What memory is used: by the process or the card, and by one step."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .. import runs

__all__ = ['memory_in_use', 'peak_memory', 'Allocations', 'step_memory']


def memory_in_use():
    """Bytes taken now: of the GPU by torch, else of main memory in all."""
    if torch.cuda.is_available():
        return torch.cuda.memory_reserved()
    return runs.resident_bytes()


def peak_memory():
    """The most that `memory_in_use` has been; None if it is not known."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved()
    return runs.peak_bytes()


class Allocations(TorchDispatchMode):
    """Bytes of the tensors made in a `with` block, while they live.

    alive(): now, also after the block. On CUDA the allocator counts, and
    starts its peaks anew. On the CPU each operation is watched and a storage
    counts once, however many views it has; left out is what an operation
    frees before it returns. calls: operations so far.
    """

    def __init__(self):
        super().__init__()
        self.cuda = torch.cuda.is_available()
        self.before, self.most, self.calls = 0, 0, 0
        self.storages = {}  # storage -> (weak reference, bytes)

    def __enter__(self):
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        if not self.cuda:
            self._watch(result, (args, kwargs))
        return result

    def _watch(self, made, given):
        old = {storage._cdata for storage in storages_of(given)}
        for storage in storages_of(made):
            if storage._cdata not in old:  # else a view, or written in place
                self.storages[storage._cdata] = (
                    StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, self.alive())

    def alive(self):
        if self.cuda:
            return torch.cuda.memory_allocated() - self.before
        self.storages = {key: (ref, size) for key, (ref, size)
                         in self.storages.items() if not ref.expired()}
        return sum(size for _, size in self.storages.values())

    def _peak(self):
        if self.cuda:
            return torch.cuda.max_memory_allocated() - self.before
        return self.most


def storages_of(tree):
    return [x.untyped_storage() for x in pytree.tree_leaves(tree)
            if isinstance(x, torch.Tensor)]


def step_memory(f, *args):
    """Bytes that f(*args) takes beyond its arguments, at its peak.

    Results count as well. f is run once, since torch knows what it needs
    only when it gets there. As `Allocations`, it leaves out what a single
    operation takes and frees on the CPU.
    """
    with Allocations() as made:
        f(*args)
    return made._peak()
