"""Training learns, stops well, and counts what it should."""

import signal

import numpy as np
import pytest


def model_and_data(backend, **kwargs):
    data = backend.d2l.TimeMachine(8, 16, 2000, 50, tokenization='char')
    return backend.gpt(len(data.vocab), 24, 3, 1, **kwargs), data


def test_training_lowers_the_loss(backend, own_text):
    """From ln V to well below it in 60 steps; dropout is off afterwards."""
    model, data = model_and_data(backend)
    losses = backend.d2l.train_lm(model, data,
                                  backend.optimizer(model, 1e-2), 60)
    assert len(losses) == 60 and all(type(x) is float for x in losses)
    assert abs(losses[0] - np.log(len(data.vocab))) < 0.5
    after = backend.d2l.val_loss(model, data)
    assert np.mean(losses[-5:]) < 2.4 and after < 2.4
    dropout = model.blks[0].dropout
    assert not (dropout.training if backend.name == 'torch'
                else not dropout.deterministic)


@pytest.mark.slow
def test_dropout_acts_in_training_and_only_there(backend, own_text):
    """Two equal models, one with dropout: their first losses differ."""
    losses = []
    for rate in (0.0, 0.5):
        model, data = model_and_data(backend, dropout=rate)
        before = backend.d2l.val_loss(model, data)
        losses.append((before, *backend.d2l.train_lm(
            model, data, backend.optimizer(model, 1e-2), 1)))
    assert losses[0][0] == losses[1][0] and losses[0][1] != losses[1][1]


def test_a_real_interrupt_waits_for_the_end_of_the_step(
        backend, own_text, monkeypatch, capsys):
    """SIGINT in the middle of step 2: the step counts, the model works."""
    model, data = model_and_data(backend)
    step, calls = backend.d2l.train.train_step, []

    def interrupted(*args):
        calls.append(signal.getsignal(signal.SIGINT))
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return step(*args)

    monkeypatch.setattr(backend.d2l.train, 'train_step', interrupted)
    before = signal.getsignal(signal.SIGINT)
    losses = backend.d2l.train_lm(model, data,
                                  backend.optimizer(model, 1e-2), 9)
    assert len(losses) == 2 and signal.getsignal(signal.SIGINT) is before
    assert 'stopped after 2 of 9 steps' in capsys.readouterr().out
    assert np.isfinite(backend.d2l.val_loss(model, data))


def test_val_loss_is_the_mean_over_all_windows(backend, own_text):
    """Each token counts once, also in a last batch that is not full."""
    model, data = model_and_data(backend, dropout=0.5)
    model.train()
    X, Y = (np.stack([data.corpus[i:i + 16] for i in range(2000 + d, 2050 + d)
                      ]) for d in (0, 1))
    with_eval = backend.d2l.val_loss(model, data)
    model.eval()
    logits = backend.full(model, X).astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(log_p, Y[..., None], -1).mean()
    assert abs(with_eval - expected) < 1e-4


def test_a_loss_that_is_not_finite_stops_the_training(backend, own_text):
    model, data = model_and_data(backend)
    weights = backend.d2l.get_weights(model)
    weights['norm.weight'][:] = np.nan
    backend.d2l.set_weights(model, weights)
    with pytest.raises(ValueError, match='loss nan at step 1.*learning rate'):
        backend.d2l.train_lm(model, data, backend.optimizer(model, 1e-2), 3)


def test_an_interrupted_training_keeps_what_it_has(
        backend, own_text, capsys):
    """Ctrl-C after two batches: two losses, and a model that works."""
    model, data = model_and_data(backend)
    loader = data.train_dataloader()

    class Interrupted:
        def train_dataloader(self):
            for i, batch in enumerate(loader):
                if i == 2:
                    raise KeyboardInterrupt
                yield batch

    losses = backend.d2l.train_lm(model, Interrupted(),
                                  backend.optimizer(model, 1e-2), 9)
    assert len(losses) == 2
    assert 'stopped after 2 of 9 steps' in capsys.readouterr().out
    assert np.isfinite(backend.d2l.val_loss(model, data))


def test_jax_compiles_one_training_step(own_text):
    from backends import BACKENDS
    backend = BACKENDS['jax']
    data = backend.d2l.TimeMachine(8, 16, 2000, 50, tokenization='char')
    model = backend.gpt(len(data.vocab), 20, 5, 1)  # a size of its own
    optimizer = backend.optimizer(model, 1e-2)
    with backend.d2l.count_compilations('train_step') as compilations:
        backend.d2l.train_lm(model, data, optimizer, 4)
        backend.d2l.train_lm(model, data, optimizer, 4)
    assert len(compilations) == 1


def test_jax_training_gives_its_old_arrays_away(own_text):
    """Parameters of before the step are donated to those after it."""
    from backends import BACKENDS
    backend = BACKENDS['jax']
    model, data = model_and_data(backend)
    old = model.token_emb.embedding[...]
    backend.d2l.train_lm(model, data, backend.optimizer(model, 1e-2), 1)
    assert old.is_deleted()
