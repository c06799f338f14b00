"""The training loop of both backends, which hand in a step and a validation.

Written once, so that interruptions, faults and printed lines cannot differ.
"""

import itertools
import math
import statistics

from .checks import check_counts
from .utils import interrupts_deferred, progress


class Losses(list):
    """The loss of each training step, in nats per token.

    evaluations: (steps taken, validation loss) of each validation.
    """

    def __init__(self):
        super().__init__()
        self.evaluations = []


def run_steps(model, loader, num_steps, eval_every, make_step, validate):
    """Take num_steps steps on batches of the loader; returns `Losses`.

    make_step(), called when the model is in training mode: step(X, Y) that
    returns the loss as a scalar array; validate(), called after every
    eval_every steps, never if that is 0: the loss as a float. A Ctrl-C
    waits for the end of its step. ValueError for counts that are none and
    for a loss that is not finite. Leaves the model in evaluation mode.
    """
    num_steps, eval_every = check_counts(num_steps=num_steps,
                                         eval_every=eval_every)
    passes = itertools.chain.from_iterable(itertools.repeat(loader))
    losses = Losses()
    model.train()
    try:
        step = make_step()
        for t in (bar := progress(range(1, num_steps + 1), 'train')):
            X, Y = next(passes)
            with interrupts_deferred():
                losses.append(step(X, Y).item())
            check_finite('loss', losses[-1], t)
            if eval_every and t % eval_every == 0:
                losses.evaluations.append((t, validate()))
                bar.write(evaluation_line(losses, eval_every))
                check_finite('validation loss', losses.evaluations[-1][1], t)
    except KeyboardInterrupt:
        print(f'stopped after {len(losses)} of {num_steps} steps')
    finally:
        model.eval()
    return losses


def evaluation_line(losses, eval_every):
    t, validation = losses.evaluations[-1]
    training = statistics.fmean(losses[-eval_every:])
    return (f'step {t:4d}: training loss {training:.3f} (mean of '
            f'{eval_every}), validation loss {validation:.3f}')


def check_finite(what, loss, t):
    if not math.isfinite(loss):
        raise ValueError(f'{what} {loss} at step {t}: '
                         'try a smaller learning rate')
