"""Weights travel between the backends and through files."""

import itertools
import os

import jax
import numpy as np
import pytest
from backends import BACKENDS
from flax import nnx

PAIRS = list(itertools.product(BACKENDS, BACKENDS))
SIZE = (31, 12, 3, 2)
FORM = dict(pos='learned', norm='layer', act='gelu', bias=True, max_len=8)


def logits(backend, model):
    return backend.full(model, np.arange(14).reshape(2, 7))


def other(backend):
    """A model of the same shape and other weights."""
    model = backend.gpt(*SIZE, **FORM)
    weights = {name: np.random.default_rng(1).normal(
        size=a.shape).astype(np.float32) / 3
        for name, a in backend.d2l.get_weights(model).items()}
    backend.d2l.set_weights(model, weights)
    return model


@pytest.mark.parametrize('source, target', PAIRS)
def test_a_copied_model_gives_the_same_logits(source, target):
    """Torch to JAX, JAX to torch, and each to itself."""
    a, b = BACKENDS[source], BACKENDS[target]
    model, copy = other(a), b.gpt(*SIZE, **FORM)
    assert np.abs(logits(a, model) - logits(b, copy)).max() > 0.1
    b.d2l.set_weights(copy, a.d2l.get_weights(model))
    np.testing.assert_allclose(logits(a, model), logits(b, copy), atol=1e-4)


@pytest.mark.parametrize('source, target', PAIRS)
def test_a_file_of_one_backend_loads_in_the_other(source, target, tmp_path):
    a, b = BACKENDS[source], BACKENDS[target]
    file, model, copy = tmp_path / 'w.safetensors', other(a), b.gpt(
        *SIZE, **FORM)
    a.d2l.save_weights(model, file)
    b.d2l.load_weights(copy, file)
    for name, x in a.d2l.get_weights(model).items():
        np.testing.assert_array_equal(x, b.d2l.get_weights(copy)[name], name)
    assert [p.name for p in tmp_path.iterdir()] == ['w.safetensors']


@pytest.mark.parametrize('source, target', PAIRS)
def test_bf16_weights_stay_bf16_in_the_file(source, target, tmp_path):
    a, b = BACKENDS[source], BACKENDS[target]
    file, model = tmp_path / 'w.safetensors', a.bf16(other(a))
    a.d2l.save_weights(model, file)
    small = file.stat().st_size
    a.d2l.save_weights(other(a), file)
    assert small < 0.6 * file.stat().st_size
    a.d2l.save_weights(model, file)
    copy = b.gpt(*SIZE, **FORM)
    b.d2l.load_weights(copy, file)
    for name, x in a.d2l.get_weights(model).items():
        np.testing.assert_array_equal(x, b.d2l.get_weights(copy)[name], name)


def test_weights_are_copies(backend):
    """Changing the arrays that were read does not change the model."""
    model = other(backend)
    before = logits(backend, model)
    for x in backend.d2l.get_weights(model).values():
        x *= 0
    np.testing.assert_array_equal(before, logits(backend, model))


@pytest.mark.parametrize('spoil, message', [
    (lambda w: w.pop('norm.weight'), 'missing: norm.weight'),
    (lambda w: w.update(extra=np.zeros(1)), 'not in the model: extra'),
    (lambda w: w.update({'blks.0.ffn.W_1.weight': np.zeros((12, 48))}),
     r'blks.0.ffn.W_1.weight: shape \(12, 48\), the model has \(48, 12\)')])
def test_what_does_not_fit_is_named_and_nothing_copied(
        backend, spoil, message):
    model = other(backend)
    before, weights = logits(backend, model), backend.d2l.get_weights(model)
    weights = {name: 0 * x for name, x in weights.items()}
    spoil(weights)
    with pytest.raises(ValueError, match=message):
        backend.d2l.set_weights(model, weights)
    np.testing.assert_array_equal(before, logits(backend, model))


def test_a_type_that_is_no_float_is_refused_and_nothing_copied(backend):
    model = other(backend)
    before, weights = logits(backend, model), backend.d2l.get_weights(model)
    weights = {name: 0 * x for name, x in weights.items()}
    last = list(weights)[-1]
    weights[last] = weights[last].astype(complex)
    with pytest.raises(ValueError, match=f'{last}: type complex128'):
        backend.d2l.set_weights(model, weights)
    np.testing.assert_array_equal(before, logits(backend, model))


def test_the_model_keeps_its_type(backend):
    """fp32 weights go into a bf16 model as bf16."""
    weights = backend.d2l.get_weights(other(backend))
    model = backend.bf16(backend.gpt(*SIZE, **FORM))
    backend.d2l.set_weights(model, weights)
    types = {str(x.dtype) for x in (
        model.parameters() if backend.name == 'torch'
        else jax.tree.leaves(nnx.state(model, nnx.Param)))}
    assert {t.removeprefix('torch.') for t in types} == {'bfloat16'}


def test_folders_are_named(backend, tmp_path):
    """A folder in the place of a file, or none where one should be."""
    with pytest.raises(FileNotFoundError, match=tmp_path.name):
        backend.d2l.load_weights(other(backend), tmp_path)
    with pytest.raises(FileNotFoundError, match='there is no folder'):
        backend.d2l.save_weights(other(backend), tmp_path / 'no' / 'w.st')


@pytest.mark.parametrize('damage', ['truncated', 'garbage', 'empty'])
def test_a_damaged_file_is_named_and_nothing_copied(
        backend, damage, tmp_path):
    file, model = tmp_path / 'w.safetensors', other(backend)
    backend.d2l.save_weights(model, file)
    whole = file.read_bytes()
    file.write_bytes({'truncated': whole[:-9], 'garbage': b'x' * 99,
                      'empty': b''}[damage])
    before = logits(backend, model)
    with pytest.raises(ValueError, match='w.safetensors is no whole'):
        backend.d2l.load_weights(model, file)
    np.testing.assert_array_equal(before, logits(backend, model))


def test_a_missing_file_is_named(backend, tmp_path):
    with pytest.raises(FileNotFoundError, match='nowhere.safetensors'):
        backend.d2l.load_weights(other(backend), tmp_path / 'nowhere.'
                                 'safetensors')


def test_a_failed_save_keeps_the_old_file(backend, tmp_path, monkeypatch):
    """The file of before survives a disk that fills up half-way."""
    file = tmp_path / 'w.safetensors'
    backend.d2l.save_weights(other(backend), file)
    whole = file.read_bytes()

    def full_disk(tensors, name):
        with open(name, 'wb') as f:
            f.write(b'half')
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(backend.d2l.weights, 'save_file', full_disk)
    with pytest.raises(OSError, match='No space left'):
        backend.d2l.save_weights(other(backend), file)
    assert file.read_bytes() == whole
    assert os.listdir(tmp_path) == ['w.safetensors']
