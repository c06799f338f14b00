"""Batches of the run's text as arrays."""

import jax.numpy as jnp

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
        return ArrayBatches(self.windows(train=True))

    def val_dataloader(self):
        """Validation batches in the order of the text."""
        return ArrayBatches(self.windows(train=False))


class ArrayBatches:
    """A loader of NumPy batches that yields JAX arrays of int32 ids."""

    def __init__(self, windows):
        self.windows = windows

    def __len__(self):
        return len(self.windows)

    def __iter__(self):
        for X, Y in self.windows:
            yield jnp.asarray(X), jnp.asarray(Y)
