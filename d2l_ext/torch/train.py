"""Training and validation of a language model."""

import functools

import torch
from torch.nn import functional as F

from ..training import run_steps
from .device import evaluation

__all__ = ['lm_loss', 'token_losses', 'train_lm', 'val_loss']


def lm_loss(model, X, Y):
    """Mean cross-entropy in nats per token of Y (B, T), given X (B, T)."""
    device = next(model.parameters()).device
    return F.cross_entropy(model(X.to(device)).flatten(0, 1),
                           Y.to(device).flatten())


def token_losses(logits, X):
    """Loss in nats (B, T - 1) of tokens 1 .. T - 1 of X (B, T).

    logits: (B, T, V), of which those of the last token have no target.
    """
    Y = X[:, 1:]
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), Y.flatten(),
                           reduction='none').reshape(Y.shape)


def train_step(model, optimizer, X, Y):
    optimizer.zero_grad()
    loss = lm_loss(model, X, Y)
    loss.backward()
    optimizer.step()
    return loss


def train_lm(model, data, optimizer, num_steps, eval_every=0):
    """Take num_steps optimizer steps; returns the loss of each, in nats.

    Passes over the training batches as often as needed. After every
    eval_every steps, if that is not 0, prints a line with the validation
    loss; the list that is returned keeps them as `evaluations`, pairs of
    step and loss. Stopped by hand, it returns the losses so far and the
    model stays as trained. ValueError if a loss is no longer finite. Leaves
    the model in evaluation mode.
    """
    return run_steps(
        model, data.train_dataloader(), num_steps, eval_every,
        make_step=lambda: functools.partial(train_step, model, optimizer),
        validate=lambda: val_loss(model, data))


@torch.inference_mode()
def val_loss(model, data):
    """Mean loss over all validation windows, in nats per token."""
    total = count = 0
    with evaluation(model):
        for X, Y in data.val_dataloader():
            total += lm_loss(model, X, Y).item() * len(X)
            count += len(X)
    return total / count
