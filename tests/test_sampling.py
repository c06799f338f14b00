"""What sample_token may draw, at its edges and on average."""

import numpy as np
import pytest

LOGITS = np.array([[1., 3., 3., 0., -2.]], np.float32)


def drawn(backend, n=120, **kwargs):
    return {int(backend.sample(LOGITS, seed=i, **kwargs)[0, 0])
            for i in range(n)}


def test_temperature_zero_takes_the_lowest_of_the_likeliest(backend):
    assert drawn(backend, 3, temperature=0) == {1}
    assert drawn(backend, 3, temperature=0, top_k=2) == {1}


@pytest.mark.parametrize('k, allowed', [
    (1, {1}), (2, {1, 2}), (3, {0, 1, 2}), (5, {0, 1, 2, 3, 4}),
    (99, {0, 1, 2, 3, 4}), (None, {0, 1, 2, 3, 4})])
def test_top_k_keeps_exactly_k(backend, k, allowed):
    """At most all tokens; ties go to the lowest ids."""
    assert drawn(backend, temperature=5.0, top_k=k) == allowed


def test_ties_at_the_cut_go_to_the_lowest_ids(backend):
    """Forty equal logits, three may stay: 0, 1 and 2."""
    equal = np.zeros((1, 40), np.float32)
    seen = {int(backend.sample(equal, seed=i, top_k=3)[0, 0])
            for i in range(60)}
    assert seen == {0, 1, 2}


@pytest.mark.parametrize('kwargs, message', [
    (dict(top_k=0), 'top_k=0: expected at least 1'),
    (dict(top_k=-3), 'top_k=-3'), (dict(top_k=2.5), 'top_k=2.5'),
    (dict(temperature=1e-40), 'temperature=1e-40'),
    (dict(temperature=np.array(1.0)), r'temperature=array\(1'),
    (dict(temperature=-0.1), 'temperature=-0.1'),
    (dict(temperature=float('inf')), 'temperature=inf')])
def test_bad_values_are_named(backend, kwargs, message):
    with pytest.raises(ValueError, match=message):
        backend.sample(LOGITS, **kwargs)


def test_bf16_logits_are_drawn_from_in_fp32(backend):
    """A thousand equal logits: bf16 weights would not add up to one."""
    equal = backend.array(np.zeros((4000, 1000), np.float32))
    if backend.name == 'torch':
        import torch
        ids = backend.d2l.sample_token(equal.to(torch.bfloat16)).numpy()
    else:
        import jax
        ids = np.asarray(backend.d2l.sample_token(
            equal.astype('bfloat16'), key=jax.random.key(0)))
    assert abs(ids.mean() - 499.5) < 4 * 289 / 4000**0.5
    assert len(np.unique(ids)) > 950


@pytest.mark.parametrize('temperature', [0.5, 2.0])
def test_frequencies_are_the_softmax(backend, temperature):
    """4000 rows drawn at once: each frequency within four deviations."""
    n = 4000
    ids = backend.sample(np.repeat(LOGITS, n, axis=0),
                         temperature=temperature)
    p = np.exp(LOGITS[0] / temperature)
    p /= p.sum()
    found = np.bincount(ids[:, 0], minlength=5) / n
    assert ids.shape == (n, 1)
    assert (np.abs(found - p) <= 4 * np.sqrt(p * (1 - p) / n) + 1e-4).all()
