"""Bytes: what is held, what is made, and what a step takes.

B batch, T tokens, H heads, hd head width, L blocks, V vocabulary
"""

import gc
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from d2l_ext import jax as d2l_jax
from d2l_ext import runs
from d2l_ext import torch as d2l_torch

V, H, HD, L, B, T = 31, 3, 4, 2, 2, 11
FORMULA = d2l_torch.cache_bytes(L, H, HD, T, B)
IDS = np.zeros((B, T), int)


def torch_cache(model, T=T):
    caches = [{} for _ in model.blks]
    logits = model.forward_cached(torch.zeros(B, T, dtype=torch.long), caches)
    return logits, [x for cache in caches for x in cache.values()]


@pytest.fixture
def model(backend):
    return backend.gpt(V, H * HD, H, L, max_len=16)


def cache_of(backend, model):
    """The arrays of a cache for B sequences of T tokens."""
    if backend.name == 'torch':
        with torch.inference_mode():
            return torch_cache(model)[1]
    return list(d2l_jax.init_cache(model, B, T))


def test_a_cache_holds_the_formula_to_the_byte(backend, model):
    """Counted by its buffers, by what is still alive, and by the formula."""
    gc.collect()
    with backend.d2l.Allocations() as made:
        cache = cache_of(backend, model)
    assert backend.d2l.held_bytes(cache) == FORMULA
    assert made.alive() == FORMULA
    cache.clear()
    assert made.alive() == 0


def test_an_array_listed_twice_is_held_once(backend):
    x = backend.array(np.ones(7, np.float32))
    y = backend.array(np.ones(5, np.float32))
    assert backend.d2l.held_bytes([x, y, x]) == 4 * (7 + 5)
    assert backend.d2l.held_bytes(iter([x, y])) == 4 * (7 + 5)
    assert backend.d2l.held_bytes([]) == 0


def test_a_view_holds_its_whole_buffer():
    """Only torch has views; two of one buffer hold it once."""
    fused = torch.zeros(5, 3 * 7)
    q, k, v = fused.chunk(3, dim=1)
    assert d2l_torch.held_bytes([v]) == fused.nbytes == 3 * v.nbytes
    assert d2l_torch.held_bytes([k, v]) == fused.nbytes
    assert d2l_torch.held_bytes([k, v.clone()]) == fused.nbytes + v.nbytes


@pytest.mark.parametrize('outer', ['allocations', 'inference_mode'])
def test_torch_counts_what_is_made_and_no_more(outer):
    """No view, nothing written in place, nothing that was there before."""
    x = torch.ones(1000)
    first, second = d2l_torch.Allocations(), torch.inference_mode()
    made = first
    if outer == 'inference_mode':
        first, second = second, first
    with first, second:
        x.add_(1)
        y = x.view(10, 100)
        assert (made.alive(), made._peak()) == (0, 0)
        z = torch.cat([x, x])
        assert (made.alive(), made._peak()) == (8000, 8000)
        w = z[:3]
        del z
        assert made.alive() == 8000  # the view keeps it
        w = w + 1
        assert (made.alive(), made._peak()) == (12, 8012)
    w = None
    assert made.alive() == 0 and len(y) == 10 and w is None


def test_torch_sees_the_peak_of_a_step():
    """Two results of 400 bytes, of which never more than two are alive."""
    def step(x):
        y = x + 1
        y = y + 1
        return y + 1
    assert d2l_torch.step_memory(step, torch.ones(100)) == 800


def test_torch_keeps_the_peak_when_a_step_ends_below_it():
    def step(x):
        return torch.cat([x, x, x])[:1].clone()
    assert d2l_torch.step_memory(step, torch.ones(100)) == 1200 + 4


def test_torch_does_not_count_an_array_that_is_handed_in():
    """Written into by `out=`, it was there before; each call counts."""
    x, y = torch.ones(100), torch.ones(100)
    with torch.inference_mode(), d2l_torch.Allocations() as made:
        torch.add(x, x, out=y)
    assert (made.alive(), made.calls) == (0, 1)


def test_two_jax_arrays_over_one_buffer_hold_it_once():
    x = jnp.ones(7)
    y = x.addressable_data(0)
    assert x is not y and d2l_jax.held_bytes([x, y]) == 28


def test_a_plan_needs_a_compiled_function():
    with pytest.raises(ValueError, match='f=.*jitted'):
        d2l_jax.step_memory(lambda x: x, jnp.ones(2))


def test_torch_prefill_takes_cache_and_logits_at_least():
    model = d2l_torch.GPT(V, H * HD, H, L)
    with torch.inference_mode():
        logits, _ = torch_cache(model)
        peak = d2l_torch.step_memory(torch_cache, model)
    assert peak >= FORMULA + logits.nbytes
    # what is more: activations of one block, a few times B * T * D
    assert peak < FORMULA + logits.nbytes + 20 * B * T * H * HD * 4


def test_donation_saves_one_cache():
    """The plan of a JAX step: old buffers kept against given away."""
    model = d2l_jax.GPT(V, H * HD, H, L)
    X = jnp.zeros((B, 1), jnp.int32)
    kept, donated = (
        d2l_jax.step_memory(step, model, *d2l_jax.init_cache(model, B, T),
                            X, 3)
        for step in (d2l_jax.jitted_chunk, d2l_jax.donated_chunk))
    # XLA may plan another few hundred bytes of scratch
    assert kept - donated == pytest.approx(FORMULA, abs=FORMULA / 4)
    assert donated >= 4 * B * V  # the logits


def test_a_plan_counts_results_and_temporaries():
    @jax.jit
    def step(x):
        return x @ x
    assert d2l_jax.step_memory(step, jnp.ones((10, 10))) >= 400


LARGE_ARRAY = """
import time
import numpy as np
from d2l_ext import {0} as d2l
from {1} import {2} as make
assert make(np.ones(8, np.float32))[-1] == 1  # what comes with the first use
before = d2l.memory_in_use()
x = make(np.ones(2**24, np.float32))
grown, peak = d2l.memory_in_use() - before, d2l.peak_memory() - before
assert x[-1] == 1
del x
for _ in range(50):  # JAX may let go of it a moment later
    left = d2l.memory_in_use() - before
    if left < grown - 2**25:
        break
    time.sleep(0.1)
print(grown, peak, left, d2l.peak_memory() - before)
"""


def test_a_large_array_shows_in_the_memory_of_the_process(backend):
    """64 MB more, within a few: the rest is the allocator's.

    In a process of its own: one that has freed as much before gives the
    array that memory, and does not grow.
    """
    if not runs.peak_bytes():
        pytest.skip('this system does not tell the peak of a process')
    made = {'torch': ('torch', 'torch', 'tensor'),
            'jax': ('jax', 'jax.numpy', 'asarray')}[backend.name]
    done = subprocess.run([sys.executable, '-c', LARGE_ARRAY.format(*made)],
                          capture_output=True, text=True, check=True)
    grown, peak, left, last_peak = map(int, done.stdout.split())
    size = 4 * 2**24
    assert grown > 0.9 * size and peak > 0.9 * size
    assert left < grown - 0.5 * size
    assert last_peak >= peak - 2**20  # counted in batches


@pytest.mark.parametrize('seconds', [1, 2])
def test_the_machine_is_measured_in_bytes_and_flops(backend, monkeypatch,
                                                    seconds):
    """A read or a product of so many seconds: rate = work / seconds."""
    monkeypatch.setattr(backend.d2l, 'timeit',
                        lambda f, reps, pick: [f()] and pick([seconds, 9]))
    assert backend.d2l.read_bandwidth((4, 8), 3) == {
        n: pytest.approx(n * 1e6 / seconds, rel=1e-3) for n in (4, 8)}
    assert backend.d2l.matmul_rate((16,), 3) == {16: 2 * 16**3 / seconds}
