"""Training learns, stops well, and counts what it should."""

import signal

import numpy as np
import pytest

from d2l_ext.training import run_steps


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
    """SIGINT in the middle of step 2: the step counts, in the model too."""
    model, data = model_and_data(backend)
    other = backend.gpt(len(data.vocab), 24, 3, 1)
    backend.d2l.train_lm(other, data, backend.optimizer(other, 1e-2), 2)
    calls = []

    def interrupted(*args, make_step, **kwargs):
        step = make_step()

        def signalled(X, Y):
            calls.append(X)
            if len(calls) == 2:
                signal.raise_signal(signal.SIGINT)
            return step(X, Y)

        return run_steps(*args, make_step=lambda: signalled, **kwargs)

    monkeypatch.setattr(backend.d2l.train, 'run_steps', interrupted)
    before = signal.getsignal(signal.SIGINT)
    losses = backend.d2l.train_lm(model, data,
                                  backend.optimizer(model, 1e-2), 9)
    assert len(losses) == 2 and signal.getsignal(signal.SIGINT) is before
    assert 'stopped after 2 of 9 steps' in capsys.readouterr().out
    off = abs(backend.d2l.val_loss(model, data)
              - backend.d2l.val_loss(other, data))
    assert off < 1e-4, f'off by {off:.1e} from a model trained for 2 steps'


@pytest.mark.slow
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


@pytest.mark.slow
def test_validating_changes_nothing(backend, own_text, capsys):
    """The same losses, dropout acting, with validation after steps 2 and 4."""
    data = model_and_data(backend)[1]
    runs, models = [], []
    for num_steps, eval_every in ((5, 0), (5, 2), (4, 0)):
        models.append(backend.gpt(len(data.vocab), 24, 3, 1, dropout=0.5))
        runs.append(backend.d2l.train_lm(
            models[-1], data, backend.optimizer(models[-1], 1e-2), num_steps,
            eval_every))
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-5)
    assert runs[0].evaluations == []
    (first, _), (last, loss) = runs[1].evaluations
    assert (first, last) == (2, 4)
    assert abs(loss - backend.d2l.val_loss(models[2], data)) < 1e-5
    assert capsys.readouterr().out.count('\n') == 2


@pytest.mark.parametrize('wrong', [
    dict(eval_every=-1), dict(eval_every=2.5), dict(eval_every=True),
    dict(num_steps=1e3)])
def test_counts_that_are_none_are_refused(backend, own_text, wrong):
    """By name and before any work: the model keeps its mode."""
    model, data = model_and_data(backend)
    model.train()
    [(name, value)] = wrong.items()
    with pytest.raises(ValueError, match=f'{name}={value}: expected a whole'):
        backend.d2l.train_lm(model, data, None, **{'num_steps': 3, **wrong})
    dropout = model.blks[0].dropout
    assert (dropout.training if backend.name == 'torch'
            else not dropout.deterministic)


def test_token_losses_are_those_of_the_next_tokens(backend):
    """-log softmax at token t + 1, as in NumPy; the last row has no target."""
    rng = np.random.default_rng(0)
    B, T, V = 2, 5, 7
    logits = 3 * rng.normal(size=(B, T, V)).astype(np.float32)
    X = rng.integers(0, V, (B, T))
    losses = backend.numpy(backend.d2l.token_losses(
        backend.array(logits), backend.array(X)))
    log_p = logits - np.log(np.exp(logits.astype(np.float64)).sum(
        -1, keepdims=True))
    expected = np.array([[-log_p[b, t, X[b, t + 1]] for t in range(T - 1)]
                         for b in range(B)])
    assert losses.shape == (B, T - 1)
    error = np.abs(losses - expected).max()
    assert error < 1e-5, f'off by {error:.1e}'
    logits[:, -1] = np.nan
    assert np.array_equal(losses, backend.numpy(backend.d2l.token_losses(
        backend.array(logits), backend.array(X))))


class Model:
    """Only the two modes of a model."""

    mode = None

    def train(self):
        self.mode = 'training'

    def eval(self):
        self.mode = 'evaluation'


def fake_run(losses, validations, eval_every=2):
    """The loop on losses that are given; an exception in one is raised."""
    model, given = Model(), {'step': iter(losses), 'val': iter(validations)}

    def make_step():
        assert model.mode == 'training'
        return lambda X, Y: np.float32(next_of('step'))

    def next_of(name):
        assert model.mode == 'training'
        value = next(given[name])
        if isinstance(value, BaseException):
            raise value
        return value

    try:
        return run_steps(model, [('X', 'Y')], len(losses), eval_every,
                         make_step, validate=lambda: next_of('val'))
    finally:
        assert model.mode == 'evaluation'


def test_one_line_per_validation(capsys):
    """The mean is over the steps since the last line; none at the end."""
    losses = fake_run([3.0, 2.0, 1.5, 1.0, 0.5], [2.25, 1.125])
    assert capsys.readouterr().out == (
        'step    2: training loss 2.500 (mean of 2), validation loss 2.250\n'
        'step    4: training loss 1.250 (mean of 2), validation loss 1.125\n')
    assert isinstance(losses, list) and losses == [3.0, 2.0, 1.5, 1.0, 0.5]
    assert losses.evaluations == [(2, 2.25), (4, 1.125)]


def test_a_validation_at_the_last_step_is_the_last():
    assert fake_run([3.0, 2.0], [2.5]).evaluations == [(2, 2.5)]


def test_an_interrupted_validation_keeps_the_losses(capsys):
    losses = fake_run([3.0, 2.0, 1.0], [KeyboardInterrupt()])
    assert losses == [3.0, 2.0] and losses.evaluations == []
    assert 'stopped after 2 of 3 steps' in capsys.readouterr().out


@pytest.mark.parametrize('losses, validations, message', [
    ([3.0, np.inf], [2.0], '^loss inf at step 2: .*smaller learning rate'),
    ([3.0, 2.0, 1.0], [np.nan], '^validation loss nan at step 2: .*smaller')])
def test_each_kind_of_loss_must_be_finite(losses, validations, message):
    with pytest.raises(ValueError, match=message):
        fake_run(losses, validations)


@pytest.mark.slow
def test_a_batch_costs_little_beside_a_step(backend, own_text):
    """Under a twentieth of a step of a model far smaller than a lesson's."""
    data = backend.d2l.TimeMachine(16, 64, 3000, 50, tokenization='char')
    model = backend.gpt(len(data.vocab), 64, 4, 2)
    optimizer = backend.optimizer(model, 1e-3)
    batches = iter(data.train_dataloader())
    X, Y = next(batches)

    def step():
        return backend.d2l.train.train_step(model, optimizer, X, Y).item()

    batch = backend.d2l.timeit(lambda: next(batches), pick=min)
    step = backend.d2l.timeit(step, reps=5, pick=min)
    assert batch < step / 20, f'{batch * 1e3:.2f} of {step * 1e3:.2f} ms'


@pytest.mark.slow
def test_jax_compiles_one_training_step(own_text):
    """Once per configuration: another model and run use it too."""
    from backends import BACKENDS
    backend = BACKENDS['jax']
    data = backend.d2l.TimeMachine(8, 16, 2000, 50, tokenization='char')
    with backend.d2l.count_compilations('train_step') as compilations:
        for _ in range(2):
            model = backend.gpt(len(data.vocab), 20, 5, 1)  # its own size
            optimizer = backend.optimizer(model, 1e-2)
            for _ in range(2):
                backend.d2l.train_lm(model, data, optimizer, 4, eval_every=2)
    assert len(compilations) == 1


def test_jax_training_gives_its_old_arrays_away(own_text):
    """Parameters and optimizer state of before the step are donated."""
    import jax
    from backends import BACKENDS
    from flax import nnx
    backend = BACKENDS['jax']
    model, data = model_and_data(backend)
    optimizer = backend.optimizer(model, 1e-2)
    old = [x for x in jax.tree.leaves(nnx.state((model, optimizer)))
           if x.size > 1]
    backend.d2l.train_lm(model, data, optimizer, 1)
    kept = [x.shape for x in old if not x.is_deleted()]
    assert len(old) == 3 * len(jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert not kept, f'{len(kept)} of {len(old)} are still there: {kept}'
