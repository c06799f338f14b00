"""Batches of the run's text as tensors."""

import torch

from ..text import TimeMachineText

__all__ = ['TimeMachine']


class TimeMachine(TimeMachineText):
    """The run's text in batches (X, Y) of (batch_size, num_steps) ids.

    Y is X one token later. Arguments, attributes and errors as in
    `d2l_ext.text.TimeMachineText`; the same seed gives the same batches in
    both backends.
    """

    def train_dataloader(self):
        """Training batches, shuffled anew on each pass."""
        return TensorBatches(self.windows(train=True))

    def val_dataloader(self):
        """Validation batches in the order of the text."""
        return TensorBatches(self.windows(train=False))


class TensorBatches:
    """A loader of NumPy batches that yields tensors of int64 ids."""

    def __init__(self, windows):
        self.windows = windows

    def __len__(self):
        return len(self.windows)

    def __iter__(self):
        for X, Y in self.windows:
            yield torch.from_numpy(X).long(), torch.from_numpy(Y).long()
