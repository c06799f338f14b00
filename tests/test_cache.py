"""Laws of the cache. Each holds in both backends; most name a real bug.

B batch, T tokens, H heads, hd head width, L blocks, V vocabulary
"""

import jax.numpy as jnp
import numpy as np
import numpy_model
import pytest
import torch
from backends import BACKENDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from d2l_ext import jax as d2l_jax
from d2l_ext import torch as d2l_torch

V, H, HD, L, B, T = 31, 3, 4, 1, 2, 11
SLOTS = 16  # JAX compiles per shape, so most tests share few of them
METHODS = 'generate', 'generate_cached', 'generate_fast'
TOLERANCE = 1e-5  # logits are of order 0.1: this is rounding and no more


def ids(seed, *shape, vocab=V):
    return np.random.default_rng(seed).integers(0, vocab, shape)


def gpt(backend, num_blks=L, **kwargs):
    return backend.gpt(V, H * HD, H, num_blks, **{'max_len': SLOTS, **kwargs})


def split_error(backend, model, X, chunks, slots=SLOTS):
    """Largest difference between a full pass and the same in chunks."""
    full, start = backend.full(model, X), 0
    cache = backend.empty(model, len(X), slots)
    worst = 0.0
    for n in chunks:
        logits, cache = backend.feed(model, cache, X[:, start:start + n],
                                     start)
        start += n
        worst = max(worst, np.abs(logits - full[:, start - 1]).max())
    return worst


@pytest.mark.parametrize('pos', ['rope', 'learned'])
@pytest.mark.parametrize('chunks', [
    [T], [1] * T, [1, 5, 5], [5, 5, 1]],
    ids=lambda chunks: '+'.join(map(str, chunks)))
def test_any_split_gives_the_logits_of_a_full_pass(backend, pos, chunks):
    """Prefill in any split, decode one by one: each row equals a full pass."""
    error = split_error(backend, gpt(backend, 2, pos=pos), ids(0, B, T),
                        chunks)
    assert error < TOLERANCE, f'{pos}, {chunks}: off by {error:.1e}'


def test_torch_gives_the_logits_of_all_new_tokens():
    """forward_cached: (B, T, V), every row as in a full pass."""
    model, X = gpt(BACKENDS['torch'], 2), torch.as_tensor(ids(9, B, T))
    caches = [{} for _ in model.blks]
    with torch.inference_mode():
        logits = [model.forward_cached(x, caches) for x in X.split([4, 1, 6],
                                                                   dim=1)]
        error = (torch.cat(logits, dim=1) - model(X)).abs().max().item()
    assert error < TOLERANCE, f'off by {error:.1e}'


@pytest.mark.slow
@pytest.mark.parametrize('form', [
    dict(pre_norm=False), dict(norm='layer', act='gelu', bias=True),
    dict(pre_norm=False, pos='learned', bias=True)], ids=str)
def test_the_cache_serves_every_form_of_block(backend, form):
    """Post-norm, biases, layer norm: the cached pass is the same model."""
    error = split_error(backend, gpt(backend, **form), ids(1, B, T), [5, 1, 5])
    assert error < TOLERANCE, f'{form}: off by {error:.1e}'


SIZES = dict(heads=st.integers(1, 5), half=st.integers(1, 3),
             batch=st.integers(1, 3), pos=st.sampled_from(['rope', 'learned']))


def check_split_of(backend, heads, half, batch, pos, chunks):
    model = backend.gpt(V, heads * 2 * half, heads, 1, max_len=24, pos=pos)
    X = ids(2, batch, sum(chunks))
    error = split_error(backend, model, X, chunks, 24)
    assert error < TOLERANCE, f'{heads=} {batch=} {pos} {chunks}: {error:.1e}'


@settings(max_examples=50, deadline=None, derandomize=True)
@given(chunks=st.lists(st.integers(1, 6), min_size=1, max_size=4), **SIZES)
def test_splits_of_any_size_in_torch(**sizes):
    """Whatever the sizes and the split, full pass and cache agree."""
    check_split_of(BACKENDS['torch'], **sizes)


@pytest.mark.slow
# every new shape is compiled, so the chunks are few and alike
@settings(max_examples=3, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.too_slow])
@given(chunks=st.integers(1, 6).map(lambda n: [n, 1, n]), **SIZES)
def test_splits_of_any_size_in_jax(**sizes):
    """Whatever the sizes and the split, full pass and cache agree."""
    check_split_of(BACKENDS['jax'], **sizes)


@pytest.mark.parametrize('pos', ['rope', 'learned'])
def test_cached_logits_equal_the_numpy_model(backend, pos):
    """The third opinion agrees with the cached pass, not only the full one."""
    model, X = gpt(backend, pos=pos), ids(3, B, T)
    weights = backend.d2l.get_weights(model)
    expected = numpy_model.logits(weights, X, H, L, pos=pos)
    logits, cache = backend.feed(model, backend.empty(model, B, SLOTS),
                                 X[:, :5], 0)
    for t in range(5, T):
        logits, cache = backend.feed(model, cache, X[:, t:t + 1], t)
    error = np.abs(logits - expected[:, -1]).max()
    assert error < TOLERANCE, f'off by {error:.1e}'


def test_cached_keys_are_final(backend):
    """A step adds rows; the rows that are there stay bit for bit."""
    model, X = gpt(backend), ids(4, B, T)
    _, cache = backend.feed(model, backend.empty(model, B, SLOTS),
                            X[:, :6], 0)
    before = backend.cached(cache, 6)
    _, cache = backend.feed(model, cache, X[:, 6:], 6)
    for old, new in zip(before, backend.cached(cache, T), strict=True):
        assert new.shape == (L, B, T, H, HD)
        np.testing.assert_array_equal(old, new[:, :, :6])


def test_two_branches_of_one_prefill_do_not_meet(backend):
    """Steps on one branch of a cache leave the other as it was."""
    model, X = gpt(backend), ids(5, B, T)
    _, prefix = backend.feed(model, backend.empty(model, B, SLOTS),
                             X[:, :5], 0)
    alone, _ = backend.feed(model, prefix, X[:, 5:], 5)
    backend.feed(model, prefix, X[:, 5:][:, ::-1].copy(), 5)
    again, _ = backend.feed(model, prefix, X[:, 5:], 5)
    np.testing.assert_array_equal(alone, again)


# --- Room -----------------------------------------------------------------


@pytest.mark.parametrize('pos', ['rope', 'learned'])
def test_a_cache_can_be_filled_to_the_last_position(backend, pos):
    """max_len tokens fit, one more is refused and the cache is untouched."""
    model, X = gpt(backend, pos=pos, max_len=T), ids(6, B, T)
    error = split_error(backend, model, X, [T - 1, 1], T)
    assert error < TOLERANCE
    _, cache = backend.feed(model, backend.empty(model, B, T),
                            X[:, :-1], 0)
    _, cache = backend.feed(model, cache, X[:, -1:], T - 1)
    before = backend.cached(cache, T)
    with pytest.raises(ValueError, match=f'{T} tokens . 1 new > {T}'):
        backend.feed(model, cache, X[:, :1], T)
    for old, new in zip(before, backend.cached(cache, T), strict=True):
        np.testing.assert_array_equal(old, new)


def test_torch_refuses_before_it_touches_the_caches():
    """The caches passed in, not only a copy, are as before the refusal."""
    model = gpt(BACKENDS['torch'], max_len=4)
    caches = [{} for _ in model.blks]
    model.forward_cached(torch.zeros(1, 3, dtype=torch.long), caches)
    before = [(c['k'], c['v']) for c in caches]
    with pytest.raises(ValueError, match='3 tokens . 2 new > 4'):
        model.forward_cached(torch.zeros(1, 2, dtype=torch.long), caches)
    assert all(c['k'] is k and c['v'] is v
               for c, (k, v) in zip(caches, before, strict=True))


@pytest.mark.parametrize('t', [-1, 7, 8])
def test_jax_refuses_a_write_that_xla_would_clamp(t):
    """Two tokens at -1, 7 or 8 of 8: refused, also for a model with room."""
    model = gpt(BACKENDS['jax'], max_len=16)
    ks, vs = d2l_jax.init_cache(model, 1, 8)
    with pytest.raises(ValueError):
        d2l_jax.cached_forward(model, ks, vs, jnp.zeros((1, 2), int), t)


def test_jax_positions_end_with_the_model_not_the_buffer():
    """A buffer longer than max_len does not make the model longer."""
    model = gpt(BACKENDS['jax'], max_len=4, pos='learned')
    ks, vs = d2l_jax.init_cache(model, 1, 8)
    with pytest.raises(ValueError, match='4 tokens . 1 new > 4'):
        d2l_jax.cached_forward(model, ks, vs, jnp.zeros((1, 1), int), 4)


@pytest.mark.parametrize('method', METHODS)
def test_generation_fills_max_len_and_refuses_one_more(
        backend, method, monkeypatch):
    """Prompt + new = max_len works; one more raises before any work."""
    model = gpt(backend, max_len=9)
    out = backend.generate(model, method, [1, 2, 3], 6, temperature=0)
    assert len(out) == 9 and out[:3] == [1, 2, 3]
    with backend.no_work(model, monkeypatch):
        with pytest.raises(ValueError, match='3 tokens . 7 new > 9'):
            backend.generate(model, method, [1, 2, 3], 7)


@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('args, kwargs, message', [
    (([], 2), {}, 'prefix is empty'),
    (([1, V], 2), {}, f'token id {V} .* vocabulary of {V}'),
    (([-1], 2), {}, 'token id -1'),
    (([[1, 2]], 2), {}, 'flat list of token ids'),
    ((3, 2), {}, 'flat list of token ids'),
    (([1.7], 2), {}, 'flat list of token ids'),
    (([1], 1.5), {}, 'num_tokens=1.5'),
    (([1], 2), dict(top_k=2.5), 'top_k=2.5'),
    (([1], -1), {}, 'num_tokens=-1'),
    (([1], 2), dict(top_k=0), 'top_k=0'),
    (([1], 2), dict(temperature=-1.0), 'temperature=-1'),
    (([1], 2), dict(temperature=float('nan')), 'temperature=nan')],
    ids=lambda x: str(x))
def test_bad_arguments_are_named_before_any_work(
        backend, method, args, kwargs, message, monkeypatch):
    """What cannot be continued is refused with the value that is wrong."""
    model = gpt(backend)
    with backend.no_work(model, monkeypatch):
        with pytest.raises(ValueError, match=message):
            backend.generate(model, method, *args, **kwargs)


@pytest.mark.parametrize('method', METHODS)
def test_a_prompt_may_be_anything_that_holds_ids(backend, method):
    """Lists, tuples, arrays, tensors, generators: the same text."""
    model, prompt = gpt(backend), [3, 1, 4, 1]
    expected = backend.generate(model, method, prompt, 9, temperature=0)
    for prefix in (tuple(prompt), np.array(prompt), iter(prompt),
                   torch.tensor(prompt), jnp.array(prompt)):
        assert expected == backend.generate(model, method, prefix, 9,
                                            temperature=0)


@pytest.mark.parametrize('blocks, batch, message', [
    (2, B, 'blocks'), (4, B, 'blocks'), (3, 1, 'sequences')])
def test_a_cache_of_another_shape_is_refused_untouched(
        backend, blocks, batch, message):
    """Too few or too many blocks, another batch: refused before work."""
    models = [gpt(backend, n) for n in (3, blocks)]
    X = ids(10, B, 2)
    _, cache = backend.feed(models[1], backend.empty(models[1], batch, SLOTS),
                            X[:batch], 0)
    with pytest.raises(ValueError, match=f'{message}.*the cache is for'):
        if backend.name == 'torch':
            models[0].forward_cached(torch.as_tensor(X), cache)
        else:
            backend.feed(models[0], cache, X, 2)
    if backend.name == 'torch':
        assert {c['k'].shape[2] for c in cache} == {2}


def test_torch_refuses_empty_caches_of_the_wrong_number():
    model, caches = gpt(BACKENDS['torch'], 3), [{}, {}]
    for wrong in (caches, []):
        with pytest.raises(ValueError, match='blocks: the cache is for'):
            model.forward_cached(torch.zeros(1, 2, dtype=torch.long), wrong)
    assert caches == [{}, {}]


# --- Memory ----------------------------------------------------------------


@pytest.mark.parametrize('pos', ['rope', 'learned'])
@pytest.mark.parametrize('prompt', [1, 5])
def test_the_torch_cache_owns_its_memory(pos, prompt):
    """No view: the storage alive is the cache, from the first chunk on."""
    model = gpt(BACKENDS['torch'], pos=pos)
    caches = [{} for _ in model.blks]
    for n in (prompt, 1):
        model.forward_cached(torch.zeros(1, n, dtype=torch.long), caches)
        for cache in caches:
            for name, x in cache.items():
                alive = x.untyped_storage().nbytes()
                assert alive == x.nbytes, (
                    f'{name}: {x.nbytes} bytes keep {alive} alive')


def test_the_jax_cache_is_the_formula():
    """Two arrays of blocks * B * max_len * H * hd elements, distinct."""
    model = gpt(BACKENDS['jax'])
    ks, vs = d2l_jax.init_cache(model, B, 16)
    assert ks.shape == vs.shape == (L, B, 16, H, HD)
    assert ks.unsafe_buffer_pointer() != vs.unsafe_buffer_pointer()


@pytest.mark.slow
def test_a_bf16_model_keeps_a_bf16_cache(backend):
    """The cache has the model's type, and still gives its full pass."""
    model, X = backend.bf16(gpt(backend)), ids(7, B, T)
    full = backend.full(model, X)
    logits, cache = backend.feed(model, backend.empty(model, B, T),
                                 X[:, :7], 0)
    for t in range(7, T):
        logits, cache = backend.feed(model, cache, X[:, t:t + 1], t)
    assert backend.dtypes(cache) == {'bfloat16'}
    error = np.abs(logits - full[:, -1]).max()
    assert error < 0.02 * np.abs(full).max() + 0.01, f'off by {error:.1e}'


# --- Generation -------------------------------------------------------------


@pytest.mark.parametrize('pos', ['rope', 'learned'])
@pytest.mark.parametrize('prompt', [[7], [3, 1, 4, 1]])
@pytest.mark.parametrize('how', [dict(temperature=0), dict(seed=3),
                                 dict(seed=4, top_k=4, temperature=0.5)],
                         ids=str)
def test_all_loops_write_the_same_text(backend, pos, prompt, how):
    """Same prompt, same seed: naive, cached and fast ids are equal."""
    model = gpt(backend, pos=pos)
    new = 13 - len(prompt)
    naive, cached, fast = (backend.generate(model, method, prompt, new, **how)
                           for method in METHODS)
    assert naive == cached == fast
    assert len(cached) == 13 and cached[:len(prompt)] == prompt
    assert all(type(i) is int for i in cached)


@pytest.mark.parametrize('method', METHODS)
def test_greedy_text_is_the_argmax_of_full_passes(backend, method):
    """Each greedy id is the likeliest one of a full pass over the rest."""
    model = gpt(backend)
    text = backend.generate(model, method, [3, 1, 4, 1], 9, temperature=0)
    full = backend.full(model, np.array([text]))[0]
    assert text[4:] == full[3:-1].argmax(-1).tolist()


@pytest.mark.parametrize('method', METHODS)
def test_the_ways_to_draw_reach_the_loop(backend, method):
    """top_k=1 and a tiny temperature are greedy; another seed is not."""
    def write(**how):
        return backend.generate(gpt(backend), method, [3, 1, 4, 1], 9, **how)
    greedy = write(temperature=0)
    assert write(top_k=1, seed=5) == write(temperature=1e-6) == greedy
    drawn = write(seed=1)
    assert drawn != greedy and drawn != write(seed=2)
    assert write(seed=1, temperature=0.01, top_k=3) != drawn


@pytest.mark.parametrize('method', METHODS)
def test_two_calls_in_a_row_are_alike(backend, method):
    """Nothing is left over from one call to the next."""
    model = gpt(backend)
    first = backend.generate(model, method, [3, 1, 4, 1], 9, seed=1)
    backend.generate(model, method, [9], 12, seed=2)
    again = backend.generate(model, method, [3, 1, 4, 1], 9, seed=1)
    assert first == again


@pytest.mark.parametrize('method', METHODS)
def test_no_new_tokens_give_the_prefix(backend, method):
    assert backend.generate(gpt(backend), method, [5, 2], 0) == [5, 2]


@pytest.mark.parametrize('method', METHODS)
def test_dropout_does_not_act_while_generating(backend, method):
    """A model in training mode writes its greedy text, and stays in it."""
    model = gpt(backend, dropout=0.5)
    quiet = backend.generate(model, method, [3, 1, 4, 1], 9, temperature=0)
    model.train()
    again = backend.generate(model, method, [3, 1, 4, 1], 9, temperature=0)
    assert quiet == again
    dropout = model.blks[0].dropout
    assert (dropout.training if backend.name == 'torch'
            else not dropout.deterministic)


def test_torch_prefills_once_then_feeds_single_tokens(monkeypatch):
    """The prompt is read once, the last token never, gradients nowhere."""
    model, fed = gpt(BACKENDS['torch']), []
    step = d2l_torch.GPT.forward_cached

    def watched(self, X, caches):
        fed.append((X.shape[1], torch.is_inference_mode_enabled()))
        return step(self, X, caches)

    monkeypatch.setattr(d2l_torch.GPT, 'forward_cached', watched)
    model.generate_cached([1, 2, 3, 4], 3)
    assert fed == [(4, True), (1, True), (1, True)]


def test_torch_keeps_no_gradients_where_none_are_needed(monkeypatch):
    """The naive loop runs under inference mode, too."""
    model, modes = gpt(BACKENDS['torch']), []
    model.register_forward_hook(
        lambda *args: modes.append(torch.is_inference_mode_enabled()))
    model.generate([1, 2], 2)
    assert modes == [True, True]


def test_torch_modes_come_back_as_they_were():
    """A block that was in evaluation mode inside a training model stays."""
    model = gpt(BACKENDS['torch'], 2)
    model.train()
    model.blks[0].eval()
    model.generate_cached([1, 2], 2)
    assert model.training and model.blks[1].training
    assert not model.blks[0].training


def test_jax_prefills_once_then_feeds_single_tokens(monkeypatch):
    """As above; the buffers have the final length and are donated."""
    model, fed = gpt(BACKENDS['jax']), []
    step = d2l_jax.donated_chunk

    def watched(model, ks, vs, X, t):
        fed.append((X.shape[1], t, ks.shape[2]))
        logits, *new = step(model, ks, vs, X, t)
        assert ks.is_deleted() and vs.is_deleted(), 'not donated'
        return logits, *new

    monkeypatch.setattr(d2l_jax.saved, 'donated_chunk', watched)
    model.generate_cached([1, 2, 3, 4], 3)
    assert fed == [(4, 0, 7), (1, 4, 7), (1, 5, 7)]


# --- What only JAX has -------------------------------------------------------


def test_jax_compiles_once_per_shape():
    """Prompt and single token: two compilations, however t is given."""
    model = d2l_jax.GPT(V, 20, 5, 1, max_len=16)
    ks, vs = d2l_jax.init_cache(model, 1, 16)
    with d2l_jax.count_compilations('forward_chunk') as compilations:
        _, ks, vs = d2l_jax.cached_forward(
            model, ks, vs, jnp.zeros((1, 6), jnp.int32), 0)
        for t in (6, np.int64(7), jnp.int32(8), jnp.array(9)):
            _, ks, vs = d2l_jax.cached_forward(
                model, ks, vs, jnp.zeros((1, 1), jnp.int32), t)
    assert len(compilations) == 2, f'{len(compilations)} compilations'
    with d2l_jax.count_compilations('forward_chunk') as compilations:
        for _ in range(2):
            model.generate_cached([1, 2, 3, 4, 5], 7)
    assert len(compilations) == 2, f'{len(compilations)} compilations'


def test_jax_cached_forward_leaves_its_buffers_to_the_caller():
    """The book's step is not donated: its callers may branch."""
    model = gpt(BACKENDS['jax'])
    ks, vs = d2l_jax.init_cache(model, 1, 16)
    d2l_jax.cached_forward(model, ks, vs, jnp.zeros((1, 2), int), 0)
    assert not ks.is_deleted() and not vs.is_deleted()


@pytest.mark.slow
def test_jax_cached_forward_works_in_a_traced_loop():
    """Inside `jit` the position is traced; the room is the caller's care."""
    import jax
    model, X = gpt(BACKENDS['jax']), jnp.asarray(ids(8, 1, 6))

    @jax.jit
    def read(model, X):
        def step(cache, t):
            x = jax.lax.dynamic_slice(X, (0, t), (1, 1))
            logits, *cache = d2l_jax.cached_forward(model, *cache, x, t)
            return tuple(cache), logits
        return jax.lax.scan(step, d2l_jax.init_cache(model, 1, 6),
                            jnp.arange(6))[1]

    error = np.abs(read(model, X)[:, 0] - model(X)[0]).max()
    assert error < TOLERANCE, f'off by {error:.1e}'


def test_an_empty_chunk_is_refused(backend):
    """No new token, no logits: a pass and a cached pass say so alike."""
    model, X = gpt(backend), ids(0, B, 0)
    with pytest.raises(ValueError, match='takes at least one'):
        backend.eager(model, X)
    with pytest.raises(ValueError, match='takes at least one'):
        backend.feed(model, backend.empty(model, B, SLOTS), X, 0)
