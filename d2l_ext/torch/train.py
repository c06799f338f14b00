"""Training and validation of a language model."""

import itertools
import math

import torch
from torch.nn import functional as F

from ..utils import interrupts_deferred, progress
from .device import evaluation

__all__ = ['lm_loss', 'train_lm', 'val_loss']


def lm_loss(model, X, Y):
    """Mean cross-entropy in nats per token of Y (B, T), given X (B, T)."""
    device = next(model.parameters()).device
    return F.cross_entropy(model(X.to(device)).flatten(0, 1),
                           Y.to(device).flatten())


def train_step(model, optimizer, X, Y):
    optimizer.zero_grad()
    loss = lm_loss(model, X, Y)
    loss.backward()
    optimizer.step()
    return loss


def train_lm(model, data, optimizer, num_steps):
    """Take num_steps optimizer steps; returns the loss of each, in nats.

    Passes over the training batches as often as needed. Stopped by hand, it
    returns the losses so far and the model stays as trained. ValueError if
    the loss is no longer finite. Leaves the model in evaluation mode.
    """
    model.train()
    passes = itertools.chain.from_iterable(
        itertools.repeat(data.train_dataloader()))
    losses = []
    try:
        for _ in progress(range(num_steps), 'train'):
            X, Y = next(passes)
            with interrupts_deferred():
                losses.append(train_step(model, optimizer, X, Y).item())
            if not math.isfinite(losses[-1]):
                raise ValueError(f'loss {losses[-1]} at step {len(losses)}: '
                                 'try a smaller learning rate')
    except KeyboardInterrupt:
        print(f'stopped after {len(losses)} of {num_steps} steps')
    finally:
        model.eval()
    return losses


@torch.inference_mode()
def val_loss(model, data):
    """Mean loss over all validation windows, in nats per token."""
    total = count = 0
    with evaluation(model):
        for X, Y in data.val_dataloader():
            total += lm_loss(model, X, Y).item() * len(X)
            count += len(X)
    return total / count
