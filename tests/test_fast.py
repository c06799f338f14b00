"""Laws of the fast loop: the same text, for any model, alone or in a batch.

B batch, T tokens, H heads, hd head width, G key-value heads, S slots
"""

import gc

import jax
import numpy as np
import pytest
import torch
from backends import BACKENDS
from torch._dynamo.utils import counters

from d2l_ext import jax as d2l_jax
from d2l_ext import torch as d2l_torch

V, H, HD, ROOM = 31, 6, 4, 40
FORMS = {'rope': {}, 'learned': dict(pos='learned'),
         'grouped': dict(num_kv_heads=2, base=300),
         'one head for all': dict(num_kv_heads=1),
         'post-norm, biases': dict(pre_norm=False, norm='layer', act='gelu',
                                   bias=True, pos='learned')}
PROMPTS = [[3], [5, 6, 7, 8, 9, 10, 11], [1, 2], [30, 0, 30, 0]]


def gpt(backend, num_blks=2, **form):
    return backend.gpt(V, H * HD, H, num_blks, max_len=ROOM, **form)


def each_form(*names):
    """A test for each form; JAX compiles for each, so most are slow."""
    return pytest.mark.parametrize('form', [
        pytest.param(FORMS[name], id=name) for name in names or FORMS])


@pytest.mark.slow
@each_form()
def test_the_fast_text_is_the_cached_text(backend, form):
    """Whatever the model is made of: the same ids, greedy and drawn."""
    model = gpt(backend, **form)
    for how in (dict(temperature=0), dict(seed=5, top_k=7)):
        cached, fast = (backend.generate(model, method, [3, 1, 4], 9, **how)
                        for method in ('generate_cached', 'generate_fast'))
        assert cached == fast, how


@each_form('rope', 'learned', 'grouped')
def test_a_row_of_a_batch_is_its_prompt_alone(backend, form):
    """Prompts of 1 to 7 tokens, together and each alone: the same ids."""
    model = gpt(backend, **form)
    alone = [backend.generate(model, 'generate_cached', prompt, 8,
                              temperature=0) for prompt in PROMPTS]
    together = backend.generate(model, 'generate_batch', PROMPTS, 8,
                                temperature=0)
    assert alone == together


def test_what_pads_a_prompt_is_never_seen(backend):
    """A long neighbour moves a prompt to the right; its logits stay."""
    model, long = gpt(backend, 1), [7] * 20
    both = backend.generate(model, 'generate_batch', [[3, 1], long], 5,
                            temperature=0)
    other = backend.generate(model, 'generate_batch', [[3, 1], long[:9]], 5,
                             temperature=0)
    assert both[0] == other[0] and both[1][:20] == long


def rows_of(backend, model, prompt, pads):
    """Keys and values (2, blocks, G, T, hd) of a prompt after some pads."""
    X, starts = np.array([[0] * pads + prompt]), np.array([pads])
    cache = backend.d2l.fast_cache(model, 1, X.shape[1] + 2)
    args = map(backend.array, (0, starts))
    if backend.name == 'torch':
        with torch.inference_mode():
            backend.d2l.fast_pass(model, backend.array(X), *cache, *args)
    else:
        _, *cache = jax.jit(backend.d2l.fast_pass)(
            model, backend.array(X), *cache, *args)
    rooms = np.array([[backend.numpy(room) for room in half]
                      for half in cache])
    return rooms.reshape(2, len(model.blks), -1, *rooms.shape[-2:])[
        ..., pads:X.shape[1], :]


@each_form('rope', 'learned')
def test_positions_count_from_the_start_of_a_text(backend, form):
    """What a prompt leaves in the cache is the same behind any pads."""
    model = gpt(backend, **form)
    alone = rows_of(backend, model, [3, 1, 4], 0)
    np.testing.assert_allclose(rows_of(backend, model, [3, 1, 4], 5), alone,
                               atol=1e-5)


def test_no_pad_is_seen_in_bf16(backend):
    """A query that pads would see nothing gives no nan to those after it."""
    model = backend.bf16(gpt(backend))
    alone, behind = (rows_of(backend, model, [3, 1, 4], pads)
                     for pads in (0, 5))
    np.testing.assert_allclose(behind, alone, atol=0.03)


@pytest.mark.slow
@each_form('rope', 'learned')
def test_a_text_may_fill_the_model_beside_a_short_one(backend, form):
    """Up to max_len, whatever lengths are rounded up to."""
    model, prompts = gpt(backend, **form), [[5, 6] * (ROOM // 2 - 2), [2, 9]]
    alone = [backend.generate(model, 'generate_cached', prompt, 4,
                              temperature=0) for prompt in prompts]
    assert len(alone[0]) == ROOM
    assert backend.generate(model, 'generate_batch', prompts, 4,
                            temperature=0) == alone


def test_a_drawn_batch_follows_its_seed(backend):
    """And the model stays in training mode, without dropout in the text."""
    model = gpt(backend, 1, dropout=0.5)
    texts = {}
    for when in ('before', 'after'):
        texts[when] = [backend.generate(model, 'generate_batch', PROMPTS, 8,
                                        seed=seed) for seed in (1, 2)]
        model.train()
    assert texts['before'] == texts['after']
    assert texts['after'][0] != texts['after'][1]
    dropout = model.blks[0].dropout
    assert (dropout.training if backend.name == 'torch'
            else not dropout.deterministic)


def test_other_weights_write_another_text(backend):
    """What the fast loop keeps between texts follows the model."""
    model, texts = gpt(backend, 1), []
    for factor in (1, -2):
        backend.d2l.set_weights(model, {
            name: factor * x
            for name, x in backend.d2l.get_weights(model).items()})
        cached, fast = (backend.generate(model, method, [3, 1, 4], 9,
                                         temperature=0)
                        for method in ('generate_cached', 'generate_fast'))
        assert cached == fast
        texts.append(fast)
    assert texts[0] != texts[1]


def test_a_batch_is_refused_as_a_whole(backend, monkeypatch):
    """One bad prompt, or one too long: its value is named, before work."""
    model = gpt(backend)
    with backend.no_work(model, monkeypatch):
        for prefixes, message in (([[1], [V]], f'token id {V}'),
                                  ([[1], []], 'prefix is empty'),
                                  ([1, 2], 'flat list of token ids'),
                                  ([[1], [2] * ROOM], 'the most there is')):
            with pytest.raises(ValueError, match=message):
                backend.generate(model, 'generate_batch', prefixes, 2)
        with pytest.raises(ValueError, match='top_k=0'):
            backend.generate(model, 'generate_batch', [[1]], 2, top_k=0)
        assert backend.generate(model, 'generate_batch', [], 2) == []
        assert backend.generate(model, 'generate_batch', [[4], [2, 3]],
                                0) == [[4], [2, 3]]


def test_positions_may_differ_from_text_to_text(backend):
    """Row b rotated from offset b is that row alone, rotated from there."""
    x = np.random.default_rng(0).standard_normal((3, 2, 5, 4)).astype('f')
    offsets = np.array([4, 0, 9])
    shape = (3, 1, 1) if backend.name == 'torch' else (3, 1)
    found = backend.rope(x, offset=backend.array(offsets.reshape(shape)))
    for row, offset, y in zip(x, offsets, found, strict=True):
        np.testing.assert_allclose(y, backend.rope(row[None],
                                                   offset=int(offset))[0],
                                   atol=1e-6)


# --- PyTorch -----------------------------------------------------------------


def step_logits(step, model, parts):
    """Logits (B, V) after tokens in parts (B, T), the first as a prompt."""
    rows = torch.zeros(len(parts[0]), dtype=torch.long)
    ks, vs = d2l_torch.may_vary(*d2l_torch.fast_cache(
        model, len(rows), sum(x.shape[1] for x in parts)))
    t = torch.tensor(0)
    with torch.inference_mode():
        for i, x in enumerate(parts):
            x = torch.tensor(x.tolist())  # a view would compile anew
            logits = (step if i else d2l_torch.fast_pass)(
                model, x, ks, vs, t, rows)
            t = t + x.shape[1]
    return logits


@pytest.mark.slow
def test_the_compiled_step_is_the_model_and_compiled_once():
    """Logits of a full pass; another length of the room compiles nothing."""
    model = gpt(BACKENDS['torch'], num_kv_heads=2)
    fast = d2l_torch.twin(model)
    torch._dynamo.reset()
    counters.clear()
    for room in (9, 10, 14):
        X = torch.arange(2, 2 + room)[None]
        logits = step_logits(d2l_torch.fast_step, fast,
                             X.split([room - 2, 1, 1], dim=1))
        with torch.inference_mode():
            error = (logits - model(X)[:, -1]).abs().max().item()
        assert error < 1e-5, f'off by {error:.1e}'
        assert counters['stats']['unique_graphs'] == 1
    text = model.generate_cached([3, 1], 9, temperature=0)
    assert model.generate_fast([3, 1], 9, temperature=0) == text
    assert counters['stats']['unique_graphs'] <= 2  # `can_compile` is one


@pytest.mark.parametrize('bias', [False, True])
def test_one_row_as_a_sum_is_the_product(bias):
    """`RowLinear` and `nn.Linear` agree on one row and on several."""
    torch.manual_seed(0)
    plain = torch.nn.Linear(5, 7, bias=bias)
    row = d2l_torch.RowLinear(5, 7, bias=bias)
    row.load_state_dict(plain.state_dict())
    for shape in ((5,), (1, 5), (1, 1, 5), (2, 5), (2, 3, 5)):
        x = torch.randn(shape)
        torch.testing.assert_close(row(x), plain(x))
        if x.numel() == 5:  # what is compiled
            y = d2l_torch.row_times(x, plain.weight, plain.bias)
            torch.testing.assert_close(y, plain(x))


@pytest.mark.slow
def test_more_programs_than_the_compilers_default_limit():
    """Batches of 1 to 9 texts in a row: none fails, each writes its text."""
    model = gpt(BACKENDS['torch'], 1)
    torch._dynamo.reset()
    d2l_torch.can_compile.cache_clear()
    text = model.generate_cached([3, 1], 4, temperature=0)
    for batch in range(1, 10):
        found = model.generate_batch([[3, 1]] * batch, 4, temperature=0)
        assert found == [text] * batch


@each_form('rope', 'grouped', 'post-norm, biases')
def test_a_twin_shares_all_parameters_and_no_module(form):
    model = gpt(BACKENDS['torch'], **form).train()
    twin = d2l_torch.twin(model)
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(a is b for a, b in pairs)
    assert not set(model.modules()) & set(twin.modules())
    assert model.training and not twin.training
    assert type(model.blks[0].ffn.W_1) is torch.nn.Linear
    assert type(twin.blks[0].ffn.W_1) is d2l_torch.RowLinear


def test_turned_weights_are_the_same_numbers_elsewhere():
    model = gpt(BACKENDS['torch'])
    turned = d2l_torch.turned(model)
    for a, b in zip(model.parameters(), turned.parameters(), strict=True):
        assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()
        assert a.is_contiguous() and (b.dim() < 2 or b.T.is_contiguous())


def test_without_a_compiler_the_text_is_the_same(monkeypatch):
    """What `torch.compile` lacks is noticed, and the plain pass does it."""
    model = gpt(BACKENDS['torch'])
    text = model.generate_cached([3, 1, 4], 9, temperature=0)

    def broken(*args, **kwargs):
        raise RuntimeError('no C++ compiler')

    d2l_torch.can_compile.cache_clear()
    monkeypatch.setattr(torch, 'compile', broken)
    monkeypatch.setattr(d2l_torch.saved, 'fast_step', broken)
    try:
        assert not d2l_torch.can_compile(torch.device('cpu'))
        assert model.generate_fast([3, 1, 4], 9, temperature=0) == text
    finally:
        d2l_torch.can_compile.cache_clear()


# --- JAX ---------------------------------------------------------------------


@each_form('rope', 'grouped', 'post-norm, biases')
def test_jax_turned_weights_give_the_same_logits(form):
    """Matrices as (out, in) in new modules; the model keeps its own."""
    model = gpt(BACKENDS['jax'], **form)
    turned = d2l_jax.turned(model)
    W, W_turned = (m.blks[0].ffn.W_1.kernel[...] for m in (model, turned))
    assert W_turned.shape == W.shape[::-1] and W.shape[0] < W.shape[1]
    np.testing.assert_array_equal(W, W_turned.T)
    assert turned.token_emb.embedding[...] is model.token_emb.embedding[...]
    X = np.array([[3, 1, 4, 1, 5]])
    full = BACKENDS['jax'].full
    np.testing.assert_allclose(full(turned, X), full(model, X), atol=1e-5)


def test_jax_copies_are_kept_while_the_weights_are_the_same():
    """Another text does not turn them again; other weights do."""
    model = gpt(BACKENDS['jax'], 1)
    copy = d2l_jax.fast_modules(model)
    assert d2l_jax.fast_modules(model) is copy
    for weights in (model.token_emb.embedding, model.blks[0].ffn.W_2.kernel):
        weights[...] = -2 * weights[...]
        text = model.generate_cached([3, 1, 4], 9, temperature=0)
        assert model.generate_fast([3, 1, 4], 9, temperature=0) == text
        assert d2l_jax.fast_modules(model) is not copy
        copy = d2l_jax.fast_modules(model)
    assert model in d2l_jax.fast_copies
    del model, weights, copy
    gc.collect()
    assert not [m for m in d2l_jax.fast_copies
                if m.token_emb.num_embeddings == V and len(m.blks) == 1]


@pytest.mark.slow
def test_jax_compiles_once_for_texts_of_similar_length():
    """Lengths that are rounded up to the same: one program each."""
    model = d2l_jax.GPT(V, 20, 5, 1, max_len=256)
    with (d2l_jax.count_compilations('fast_prefill') as prompts,
          d2l_jax.count_compilations('fast_loop') as loops):
        for prompt, new in (([1], 3), ([1, 2, 3], 16), ([2] * 15, 9)):
            model.generate_fast(prompt, new, temperature=0)
        for temperature in (0.5, 0.7):
            model.generate_fast([1], 3, temperature=temperature)
    assert (len(prompts), len(loops)) == (2, 2)  # greedy, and drawn


@pytest.mark.parametrize('num_kv_heads, B', [(6, 1), (2, 1), (2, 3)])
def test_the_jax_loop_never_copies_a_cache(num_kv_heads, B):
    """Beside the buffers that it was given it needs less than one more."""
    # heads wide enough, and enough slots, that a cache is the largest array
    model, S = d2l_jax.GPT(V, H * 32, H, 2, num_kv_heads=num_kv_heads), 2048
    ks, vs = d2l_jax.fast_cache(model, B, S)
    keys = jax.random.split(jax.random.key(0), S)
    zeros = np.zeros((B, 1), np.int32)
    loop = d2l_jax.fast_loop.lower(
        model, zeros, ks, vs, 5, zeros[:, 0], keys, 9, 1.0, True,
        None).compile({'xla_cpu_use_fusion_emitters': True})  # as in lessons
    needs = loop.memory_analysis()
    assert needs.alias_size_in_bytes >= sum(
        room.nbytes for room in (*ks, *vs)), 'not written in place'
    assert needs.temp_size_in_bytes < ks[0].nbytes, 'a cache is copied'


@pytest.mark.parametrize('count, up', [
    (1, 16), (16, 16), (17, 32), (33, 64), (64, 64), (65, 128), (200, 256)])
def test_lengths_are_rounded_up_to_few(count, up):
    assert d2l_jax.round_up(count) == up
