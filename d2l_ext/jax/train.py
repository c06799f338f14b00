"""Training and validation of a language model."""

import jax
import optax
from flax import nnx

from ..training import run_steps
from .device import evaluation

__all__ = ['lm_loss', 'token_losses', 'train_lm', 'val_loss']


def lm_loss(model, X, Y):
    """Mean cross-entropy in nats per token of Y (B, T), given X (B, T)."""
    return optax.softmax_cross_entropy_with_integer_labels(
        model(X), Y).mean()


@jax.jit
def token_losses(logits, X):
    """Loss in nats (B, T - 1) of tokens 1 .. T - 1 of X (B, T).

    logits: (B, T, V), of which those of the last token have no target.
    """
    return optax.softmax_cross_entropy_with_integer_labels(
        logits[:, :-1], X[:, 1:])


# the old parameters and optimizer state are not needed again, so their
# memory is given to the new ones
@nnx.jit(donate_argnames=('model', 'optimizer'))
def train_step(model, optimizer, X, Y):
    loss, grads = nnx.value_and_grad(lm_loss)(model, X, Y)
    optimizer.update(model, grads)
    return loss


def train_lm(model, data, optimizer, num_steps, eval_every=0):
    """Take num_steps optimizer steps; returns the loss of each, in nats.

    optimizer: an `nnx.Optimizer` on the model's `nnx.Param`. Passes over
    the training batches as often as needed. After every eval_every steps,
    if that is not 0, prints a line with the validation loss; the list that
    is returned keeps them as `evaluations`, pairs of step and loss. Stopped
    by hand, it returns the losses so far and the model stays as trained.
    ValueError if a loss is no longer finite. Leaves the model in evaluation
    mode.
    """
    return run_steps(
        model, data.train_dataloader(), num_steps, eval_every,
        # the parts of both are looked up once, not for each step
        make_step=lambda: nnx.cached_partial(train_step, model, optimizer),
        validate=lambda: val_loss(model, data))


def val_loss(model, data):
    """Mean loss over all validation windows, in nats per token."""
    total = count = 0
    with evaluation(model) as model:
        for X, Y in data.val_dataloader():
            total += jitted_loss(model, X, Y).item() * len(X)
            count += len(X)
    return total / count


jitted_loss = jax.jit(lm_loss)
