"""Published checkpoints in the book's model, and what GPT takes for them.

B batch, T tokens, H query heads, G key-value heads, hd head width, L blocks,
V vocabulary
"""

import functools
import itertools
import json
import struct
import subprocess
import sys
import weakref
from dataclasses import replace
from types import SimpleNamespace

import gguf
import jax.numpy as jnp
import numpy as np
import numpy_model
import pytest
import torch
from backends import BACKENDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from d2l_ext import checkpoints, hub, runs
from d2l_ext.checkpoints import CHECKPOINTS
from d2l_ext.text import read_text, visible_bytes

B, T, H, G, HD, L = 2, 7, 6, 3, 4, 2
D = H * HD


def random_like(shapes, scale=1.0):
    """Weights of order one: zero biases would hide a bias left out."""
    rng = np.random.default_rng(0)  # the order of names is the backend's
    return {name: (scale * rng.normal(size=shape) / np.sqrt(shape[-1])
                   ).astype(np.float32)
            for name, shape in sorted(shapes.items())}


def ids(seed, *shape, vocab=31):
    return np.random.default_rng(seed).integers(0, vocab, shape)


def gpt(backend, num_blks=1, **kwargs):
    model = backend.gpt(31, D, H, num_blks, max_len=16, **kwargs)
    shapes = backend.d2l.weight_shapes(model)
    backend.d2l.set_weights(model, random_like(shapes, scale=2))
    return model


def check_close(a, b, tolerance, what):
    error, scale = np.abs(a - b).max(), np.abs(b).max()
    assert error < tolerance * scale, (
        f'{what}: off by {error:.1e} at scale {scale:.1f}')


# What GPT takes


@pytest.mark.parametrize('pos', ['rope', 'learned'])
def test_blocks_with_shared_heads_hold_the_lessons_attention(backend, pos):
    """G heads in each, with rotary positions if the model has them."""
    for blk in gpt(backend, num_kv_heads=G, base=500, pos=pos).blks:
        attention = blk.attention
        assert type(attention) is backend.d2l.GQAAttention
        assert (attention.num_heads, attention.num_kv_heads) == (H, G)
        assert attention.rope is (pos == 'rope') and attention.causal
        assert attention.base == 500
    fused = gpt(backend, base=500, pos=pos).blks[0].attention
    assert type(fused) is backend.d2l.GPT.CausalAttention
    assert fused.rope is (pos == 'rope') and fused.base == 500


FORMS = [
    dict(num_kv_heads=G, base=500, epsilon=0.7),
    pytest.param(dict(num_kv_heads=None, base=500, epsilon=0.3, norm='layer',
                      act='gelu', bias=True), marks=pytest.mark.slow),
    pytest.param(dict(num_kv_heads=1, pos='learned', bias=True, epsilon=0.5),
                 marks=pytest.mark.slow),
    pytest.param(dict(num_kv_heads=H, base=50, pre_norm=False, norm='layer',
                      epsilon=0.2), marks=pytest.mark.slow)]


@pytest.mark.parametrize('form', FORMS, ids=lambda form: '-'.join(
    map(str, form.values())))
def test_three_models_agree_with_heads_base_and_epsilon(form):
    """Same weights, same ids: torch, JAX and NumPy give the same logits."""
    X, logits = ids(1, B, T), {}
    for backend in BACKENDS.values():
        model = gpt(backend, **form)
        logits[backend.name] = backend.full(model, X)
    weights = backend.d2l.get_weights(model)
    only = {k: x for k, x in form.items() if k != 'bias'}
    logits['numpy'] = numpy_model.logits(weights, X, H, 1, **only)
    for a, b in itertools.combinations(logits, 2):
        check_close(logits[a], logits[b], 1e-5, f'{a} and {b}')


@pytest.mark.parametrize('num_kv_heads', [None, G])
def test_another_base_gives_other_logits(backend, num_kv_heads):
    """From position 1 on; position 0 is not turned."""
    one, other = (backend.full(gpt(
        backend, num_kv_heads=num_kv_heads, base=base), ids(1, B, T))
        for base in (500, 10000))
    difference = np.abs(one - other).max(axis=(0, 2))
    assert difference[0] < 1e-5 and difference[2:].min() > 1e-3


@pytest.mark.parametrize('num_kv_heads', [None, G])
def test_the_cache_turns_by_the_same_base(backend, num_kv_heads):
    """Prompt of 3, then two tokens: each row equals a full pass."""
    model = gpt(backend, num_kv_heads=num_kv_heads, base=500)
    X = ids(2, B, T)
    full, start = backend.full(model, X), 0
    cache = backend.empty(model, B, 16)
    for n in (3, 1, 1):
        logits, cache = backend.feed(model, cache, X[:, start:start + n],
                                     start)
        start += n
        check_close(logits, full[:, start - 1], 1e-5, f'{start} tokens')


@pytest.mark.parametrize('norm', ['rms', 'layer'])
def test_epsilon_reaches_every_norm(backend, norm):
    """A vector of mean square 1e-12 comes out as small as epsilon says."""
    model, x = gpt(backend, norm=norm, epsilon=0.01), np.zeros(D)
    x[::2], x[1::2] = 1e-6, -1e-6
    norms = dict(norm1=model.blks[0].norm1, norm2=model.blks[0].norm2,
                 last=model.norm)
    for name, layer in norms.items():
        weights = {'weight': np.ones(D, np.float32)}
        if norm == 'layer':
            weights['bias'] = np.zeros(D, np.float32)
        backend.d2l.set_weights(layer, weights)
        y = backend.numpy(layer(backend.array(x.astype(np.float32))))
        np.testing.assert_allclose(np.abs(y), 1e-5, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize('wrong, message', [
    (dict(num_kv_heads=4), 'num_heads=6 is no multiple of num_kv_heads=4'),
    (dict(num_kv_heads=0), 'num_kv_heads=0'),
    (dict(num_kv_heads=-3), 'num_kv_heads=-3'),
    (dict(num_kv_heads=3.0), 'num_kv_heads=3.0'),
    (dict(base=0), 'base=0'), (dict(base=-1.5), 'base=-1.5'),
    (dict(base=float('nan')), 'base=nan'), (dict(base='10000'), "base='10000"),
    (dict(base=None), 'base=None'), (dict(epsilon=0), 'epsilon=0'),
    (dict(epsilon=-1e-5), 'epsilon=-1e-05'),
    (dict(epsilon=float('inf')), 'epsilon=inf'),
    (dict(epsilon=True), 'epsilon=True')])
def test_bad_values_are_named(backend, wrong, message):
    with pytest.raises(ValueError, match=message):
        backend.gpt(31, D, H, 1, **wrong)


@pytest.mark.parametrize('rope', [True, False])
@pytest.mark.parametrize('bias', [True, False])
def test_both_kinds_of_attention_project_alike(backend, rope, bias):
    """Where no head is shared, same weights give the same q, k and v."""
    shared = backend.d2l.GQAAttention(D, H, H, bias, rope=rope, base=500)
    fused = backend.d2l.GPT.CausalAttention(D, H, rope, bias, base=500)
    weights = random_like(backend.d2l.weight_shapes(fused))
    backend.d2l.set_weights(fused, weights)
    apart = {name: x for name, x in weights.items() if 'W_o' in name}
    for kind in ('weight', 'bias')[:1 + bias]:
        apart |= {f'W_{c}.{kind}': x for c, x in zip('qkv', np.split(
            weights[f'W_qkv.{kind}'], 3), strict=True)}
    backend.d2l.set_weights(shared, apart)
    X = backend.array(np.random.default_rng(1).normal(
        size=(B, T, D)).astype(np.float32))
    for name, a, b in zip('qkv', fused.project(X, X, X, offset=5),
                          shared.project(X, X, X, offset=5), strict=True):
        a, b = backend.numpy(a), backend.numpy(b)
        expected = (B, H, T, HD) if backend.name == 'torch' else (B, T, H, HD)
        assert a.shape == b.shape == expected, name
        check_close(a, b, 1e-5, name)


# Small files of our own, in the published names. Both vocabularies are the
# 256 bytes, one merge and one special token.

BYTES = list(visible_bytes())
V = len(BYTES) + 2
GPT2 = dict(vocab_size=V, num_hiddens=12, num_heads=3, num_blks=L,
            max_len=16, pos='learned', norm='layer', act='gelu', bias=True,
            epsilon=1e-5)
LLAMA = dict(vocab_size=V, num_hiddens=32, num_heads=4, num_blks=L,
             max_len=16, pos='rope', norm='rms', act='swiglu',
             num_kv_heads=2, base=500, epsilon=1e-5)
WIDTH = 85  # of the feed-forward network, 8 * 32 / 3


def gpt2_tensors():
    """{published name: array}, masks included; sizes V, 16, 12, 36, 48."""
    D = GPT2['num_hiddens']
    shapes = {'wte.weight': (V, D), 'wpe.weight': (16, D),
              'ln_f.weight': (D,), 'ln_f.bias': (D,)}
    for i in range(L):
        for name, size in (('ln_1', (D,)), ('attn.c_attn', (D, 3 * D)),
                           ('attn.c_proj', (D, D)), ('ln_2', (D,)),
                           ('mlp.c_fc', (D, 4 * D)), ('mlp.c_proj',
                                                      (4 * D, D))):
            shapes[f'h.{i}.{name}.weight'] = size
            shapes[f'h.{i}.{name}.bias'] = size[-1:]
    masks = {f'h.{i}.attn.bias': np.tril(np.ones((1, 1, 16, 16), np.float32))
             for i in range(L)}
    return random_like(shapes) | masks


def gpt2_files(folder, tensors=None):
    """{name in the hub: path} of a small GPT-2."""
    files = {name: folder / hub.ASSETS[name].filename
             for name in CHECKPOINTS['gpt2'].assets}
    save_file(tensors or gpt2_tensors(), files['gpt2-weights'])
    tokens = [*BYTES, 'ab', '<|endoftext|>']
    files['gpt2-vocab'].write_text(json.dumps(
        {token: i for i, token in enumerate(tokens)}), encoding='utf-8')
    files['gpt2-merges'].write_text('#version: 0.2\na b\n')
    return files


def llama_tensors():
    """{published name: array}, as (out, in)."""
    D, G = 32, 16
    shapes = {'token_embd': (V, D), 'output_norm': (D,)}
    for i in range(L):
        shapes |= {f'blk.{i}.{name}': size for name, size in (
            ('attn_norm', (D,)), ('attn_q', (D, D)), ('attn_k', (G, D)),
            ('attn_v', (G, D)), ('attn_output', (D, D)), ('ffn_norm', (D,)),
            ('ffn_gate', (WIDTH, D)), ('ffn_up', (WIDTH, D)),
            ('ffn_down', (D, WIDTH)))}
    return random_like({f'{name}.weight': x for name, x in shapes.items()})


QUANTS = {'token_embd.weight': 'Q8_0', 'blk.0.ffn_up.weight': 'Q4_1',
          'blk.1.attn_q.weight': 'F16', 'blk.1.attn_k.weight': 'BF16'}
VOCABULARY = dict(tokens=['<s>', *BYTES, 'ab'], merges=['a b'],
                  token_type=[3] + [1] * (V - 1))


def llama_file(folder, tensors=None, name='smollm2', quants=QUANTS,
               raw=None, **vocabulary):
    """{name in the hub: path} of a small GGUF file.

    raw: {name: (array, type)} that go in as they are; vocabulary: lists in
    the place of VOCABULARY's, None to leave one out.
    """
    file = folder / f'{name}.gguf'
    writer = gguf.GGUFWriter(file, 'llama')
    for key, values in (VOCABULARY | vocabulary).items():
        if values is not None:
            writer.add_array(f'tokenizer.ggml.{key}', values)
    for name, array in (tensors or llama_tensors()).items():
        kind = gguf.GGMLQuantizationType[quants.get(name, 'F32')]
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    for name, (array, kind) in (raw or {}).items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {'smollm2': file}


SMALL = {'gpt2': (GPT2, gpt2_files), 'smollm2': (LLAMA, llama_file)}


@pytest.fixture
def use(monkeypatch):
    """use(name, files): the hub has these files, the table small sizes."""
    def use(name, files, sizes=None):
        monkeypatch.setattr(hub, 'fetch', lambda asset: str(files[asset]))
        small = replace(CHECKPOINTS[name], sizes=sizes or SMALL[name][0])
        monkeypatch.setitem(CHECKPOINTS, name, small)
        return small
    return use


def load(backend, name):
    return getattr(backend.d2l, f'load_{name}')()


def expected_gpt2():
    """{shared name: array} of gpt2_tensors, written out once more."""
    t, named = gpt2_tensors(), {}
    named['token_emb.weight'] = t['wte.weight']
    named['pos_emb.weight'] = t['wpe.weight']
    for kind in ('weight', 'bias'):
        named[f'norm.{kind}'] = t[f'ln_f.{kind}']
        for i in range(L):
            ours, theirs = f'blks.{i}', f'h.{i}'
            named |= {
                f'{ours}.norm1.{kind}': t[f'{theirs}.ln_1.{kind}'],
                f'{ours}.norm2.{kind}': t[f'{theirs}.ln_2.{kind}'],
                f'{ours}.attention.W_qkv.{kind}': t[
                    f'{theirs}.attn.c_attn.{kind}'].T,
                f'{ours}.attention.W_o.{kind}': t[
                    f'{theirs}.attn.c_proj.{kind}'].T,
                f'{ours}.ffn.W_1.{kind}': t[f'{theirs}.mlp.c_fc.{kind}'].T,
                f'{ours}.ffn.W_2.{kind}': t[f'{theirs}.mlp.c_proj.{kind}'].T}
    return named


def expected_smollm2():
    t, named = llama_tensors(), {}
    for name, quant in QUANTS.items():  # what is left of the numbers
        kind = gguf.GGMLQuantizationType[quant]
        t[name] = gguf.dequantize(gguf.quantize(t[name], kind), kind)
    named['token_emb'] = t['token_embd.weight']
    named['norm'] = t['output_norm.weight']
    for i in range(L):
        named |= {f'blks.{i}.{ours}': t[f'blk.{i}.{theirs}.weight']
                  for ours, theirs in (
            ('norm1', 'attn_norm'), ('norm2', 'ffn_norm'),
            ('attention.W_q', 'attn_q'), ('attention.W_k', 'attn_k'),
            ('attention.W_v', 'attn_v'), ('attention.W_o', 'attn_output'),
            ('ffn.W_g', 'ffn_gate'), ('ffn.W_1', 'ffn_up'),
            ('ffn.W_2', 'ffn_down'))}
    return {f'{name}.weight': x for name, x in named.items()}


@pytest.mark.parametrize('name, expected', [
    ('gpt2', expected_gpt2), ('smollm2', expected_smollm2)])
def test_each_tensor_goes_where_it_belongs(backend, use, tmp_path, name,
                                           expected):
    """As fp32, in a model of the table's sizes, in evaluation mode."""
    sizes = SMALL[name][0] | dict(epsilon=0.3)
    use(name, SMALL[name][1](tmp_path), sizes)
    model, encoding = load(backend, name)
    found, expected = backend.d2l.get_weights(model), expected()
    assert found.keys() == expected.keys()
    for key, x in expected.items():
        np.testing.assert_array_equal(found[key], x, key)
    dropout = model.blks[0].dropout
    assert not (dropout.training if backend.name == 'torch'
                else not dropout.deterministic)
    assert encoding.name == name and encoding.n_vocab == V
    [ab] = encoding.encode_ordinary('ab')
    assert ab == {'gpt2': V - 2, 'smollm2': V - 1}[name]
    only = {k: x for k, x in sizes.items() if k not in (
        'vocab_size', 'num_hiddens', 'max_len', 'bias')}
    X = ids(3, B, T, vocab=V)
    check_close(backend.full(model, X), numpy_model.logits(
        expected, X, **only), 1e-5, 'logits and those of NumPy')


@pytest.mark.parametrize('name', SMALL)
def test_load_checkpoint_gives_that_of_the_run(backend, name, monkeypatch):
    for other in SMALL:
        monkeypatch.setitem(CHECKPOINTS, other, SimpleNamespace(
            load=lambda *_, other=other: ('model', f'encoding of {other}')))
    monkeypatch.setattr(runs, 'latest', runs.Run('small', 'timemachine',
                                                 name))
    assert backend.d2l.load_checkpoint() == (
        'model', f'encoding of {name}', name)


def test_a_file_that_cannot_be_had_is_asked_for_before_any_work(
        backend, monkeypatch, tmp_path):
    """FileNotFoundError says where to put it; no model is built."""
    def fail(**sizes):
        raise AssertionError('a model was built before the refusal')

    asset = replace(hub.ASSETS['gpt2-weights'], urls=())
    for name in CHECKPOINTS['gpt2'].assets:
        monkeypatch.setitem(hub.ASSETS, name, asset)
    monkeypatch.setattr(hub, 'data_folder', lambda: str(tmp_path))
    monkeypatch.delenv('D2L_DATA', raising=False)
    monkeypatch.setattr(backend.d2l.pretrained, 'GPT', fail)
    with pytest.raises(FileNotFoundError, match=r'gpt2-124m.safetensors') as e:
        load(backend, 'gpt2')
    assert str(tmp_path) in str(e.value) and 'D2L_DATA' in str(e.value)


@pytest.mark.parametrize('name', SMALL)
def test_one_tensor_at_a_time_is_in_memory(backend, use, tmp_path, name):
    """Each is read once; no more than the one before is still held."""
    checkpoint = use(name, SMALL[name][1](tmp_path))
    alive, reads = set(), []

    def watched(key, tensor):
        def read():
            reads.append((key, len(alive)))
            x = tensor.read().copy()
            alive.add(key)
            weakref.finalize(x, alive.discard, key)
            return x
        return replace(tensor, read=read)

    def read(*files):
        stored, encoding = checkpoint.read(*files)
        return {key: watched(key, x) for key, x in stored.items()}, encoding

    CHECKPOINTS[name] = replace(checkpoint, read=read)
    load(backend, name)
    names = [key for key, _ in reads]
    assert len(names) == len(set(names)) == {
        'gpt2': 4 + 12 * L, 'smollm2': 2 + 9 * L}[name]
    held = {key: n for key, n in reads if n > 1}
    assert not held, f'others were held while these were read: {held}'


# Faults


class Shapes:
    """As good as a model to a checkpoint: shapes, and what is copied in."""

    def __init__(self, shapes):
        self.shapes = shapes

    def fill(self, tensors):
        for name, tensor in tensors.items():
            assert np.asarray(tensor).shape == self.shapes[name], name


@pytest.fixture(scope='module')
def shapes():
    """{name of a checkpoint: {shared name: shape}} of the small models."""
    return {'gpt2': {k: x.shape for k, x in expected_gpt2().items()},
            'smollm2': {k: x.shape for k, x in expected_smollm2().items()}}


@pytest.fixture
def refused(use, shapes):
    """refused(name, files): the words of the ValueError, file first."""
    def refused(name, files):
        checkpoint = use(name, files)
        file = str(files[checkpoint.assets[0]])
        with pytest.raises(ValueError) as error:
            checkpoint.load(lambda **sizes: Shapes(shapes[name]),
                            lambda model: model.shapes, Shapes.fill)
        assert str(error.value).startswith(f'{file}: ')
        return str(error.value).removeprefix(f'{file}: ')
    return refused


CHANGED = [
    ('gpt2', lambda t: t.pop('h.1.mlp.c_fc.weight'),
     'tensor h.1.mlp.c_fc.weight is missing'),
    ('gpt2', lambda t: t.pop('wpe.weight'), 'tensor wpe.weight is missing'),
    ('gpt2', lambda t: t.update({'h.2.ln_1.bias': np.zeros(12, np.float32)}),
     'tensor h.2.ln_1.bias is not in the model'),
    ('gpt2', lambda t: t.update({f'h.{L}.attn.bias': np.zeros(
        (1, 1, 16, 16), np.float32)}),
     f'tensor h.{L}.attn.bias is not in the model'),
    ('gpt2', lambda t: t.update({'h.*.attn.bias': np.zeros(
        1, np.float32)}), 'tensor h.*.attn.bias is not in the model'),
    ('gpt2', lambda t: t.update({f'x{i}': np.zeros(1, np.float32)
                                 for i in range(4)}),
     'is not in the model, nor are 3 others'),
    ('gpt2', lambda t: t.update({'h.0.mlp.c_fc.weight': np.zeros(
        (48, 12), np.float32)}),
     'tensor h.0.mlp.c_fc.weight: shape (48, 12), expected (12, 48)'),
    ('gpt2', lambda t: t.update({'wte.weight': np.zeros(
        (12, 31), np.float32)}),
     f'tensor wte.weight: shape (12, 31), expected ({V}, 12)'),
    ('smollm2', lambda t: t.pop('blk.1.ffn_gate.weight'),
     'tensor blk.1.ffn_gate.weight is missing'),
    ('smollm2', lambda t: t.update({'output.weight': np.zeros(
        (V, 32), np.float32)}), 'tensor output.weight is not in the model'),
    ('smollm2', lambda t: t.update({'blk.0.ffn_down.weight': np.zeros(
        (85, 32), np.float32)}),
     'tensor blk.0.ffn_down.weight: shape (85, 32), expected (32, 85)')]


@pytest.mark.parametrize('name, change, message', CHANGED)
def test_a_tensor_that_does_not_fit_is_named(refused, tmp_path, name, change,
                                             message):
    """With both shapes as the file has them."""
    tensors = {'gpt2': gpt2_tensors, 'smollm2': llama_tensors}[name]()
    change(tensors)
    assert message in refused(name, SMALL[name][1](tmp_path, tensors))


@pytest.mark.parametrize('name, change, message', [
    CHANGED[0], CHANGED[2], CHANGED[-4], *CHANGED[-3:]])
def test_a_fault_passes_through_each_backend(backend, use, tmp_path, name,
                                             change, message):
    """Missing, not in the model, of another shape; in either kind of file."""
    tensors = {'gpt2': gpt2_tensors, 'smollm2': llama_tensors}[name]()
    change(tensors)
    files = SMALL[name][1](tmp_path, tensors)
    file = files[use(name, files).assets[0]]
    with pytest.raises(ValueError) as error:
        load(backend, name)
    assert str(error.value).startswith(f'{file}: ')
    assert message in str(error.value)


@pytest.mark.parametrize('name', SMALL)
def test_a_cut_tensor_is_named_in_each_backend(backend, use, tmp_path, name):
    """The first that the file ends within."""
    files = SMALL[name][1](tmp_path)
    checkpoint = use(name, files)
    file = files[checkpoint.assets[0]]
    whole = file.read_bytes()
    last = {'gpt2': 'wte.weight', 'smollm2': 'token_embd.weight'}[name]
    file.write_bytes(whole[:-40])
    with pytest.raises(ValueError) as error:
        load(backend, name)
    assert f'{file}: no whole' in str(error.value)
    assert f'tensor {last}' in str(error.value)


@pytest.mark.parametrize('asset, text, message', [
    ('gpt2-vocab', '{"a": 0,', 'Expecting'),
    ('gpt2-vocab', '["a"]', 'no table of ids'),
    ('gpt2-vocab', '{"a": 0}', 'no <|endoftext|> in it'),
    ('gpt2-vocab', '{"a": "0", "<|endoftext|>": 1}', 'no table of ids'),
    ('gpt2-vocab', '{"a": 0, "<|endoftext|>": 2}', 'the ids are not 0 to 1'),
    ('gpt2-vocab', '{"日": 0, "<|endoftext|>": 1}', 'is not written in'),
    ('gpt2-merges', '', 'not enough values'),
    ('gpt2-merges', '#version: 0.2\nb a\n', 'merges are not in the order')])
def test_a_damaged_tokenizer_of_gpt2_is_named(use, shapes, tmp_path, asset,
                                              text, message):
    """That file, not the one of the weights; and no weight is copied."""
    def fill(model, tensors):
        raise AssertionError('weights were copied before the refusal')

    files = gpt2_files(tmp_path)
    files[asset].write_text(text, encoding='utf-8')
    with pytest.raises(ValueError) as error:
        use('gpt2', files).load(lambda **sizes: Shapes(shapes['gpt2']),
                                lambda model: model.shapes, fill)
    assert str(error.value).startswith(f'{files[asset]}: ')
    assert message in str(error.value)


@pytest.mark.parametrize('kind, label', [
    (torch.bfloat16, 'BF16'), (torch.int32, 'I32'), (torch.float64, 'F64'),
    (torch.uint8, 'U8')])
def test_other_types_in_safetensors_are_named(refused, tmp_path, kind, label):
    files = gpt2_files(tmp_path)
    tensors = {name: torch.tensor(x) for name, x in gpt2_tensors().items()}
    tensors['h.0.ln_2.bias'] = tensors['h.0.ln_2.bias'].to(kind)
    save_torch_file(tensors, files['gpt2-weights'])
    assert refused('gpt2', files) == (
        f'tensor h.0.ln_2.bias: type {label}, expected F32 or F16')


def test_fp16_in_safetensors_comes_as_fp32(tmp_path):
    x = np.linspace(0, 1, 6, dtype=np.float16).reshape(2, 3)
    save_file({'x': x}, tmp_path / 'x')
    [stored] = checkpoints.read_safetensors(tmp_path / 'x').values()
    assert (stored.shape, stored.kind) == ((2, 3), 'F16')
    y, turned = np.asarray(stored), stored.turned()
    assert y.dtype == np.float32 and np.array_equal(y, x)
    assert turned.shape == (3, 2) and np.array_equal(np.asarray(turned), x.T)


def header_end(whole):
    return 8 + struct.unpack('<Q', whole[:8])[0]


@pytest.mark.parametrize('damage', [
    lambda whole: whole[:5], lambda whole: whole[:header_end(whole) // 2],
    lambda whole: whole[:header_end(whole)], lambda whole: whole[:-1],
    lambda whole: whole + b'0', lambda whole: b'x' * 999, lambda whole: b''],
    ids=['length', 'header', 'no data', 'data', 'longer', 'garbage', 'empty'])
def test_a_damaged_safetensors_file_is_named(refused, tmp_path, damage):
    files = gpt2_files(tmp_path)
    whole = files['gpt2-weights'].read_bytes()
    files['gpt2-weights'].write_bytes(damage(whole))
    assert refused('gpt2', files).startswith('no whole safetensors file: ')


def test_a_gguf_file_cut_short_anywhere_is_named(refused, tmp_path):
    """In the header, the metadata, the table of tensors, the data."""
    files = llama_file(tmp_path)
    file, whole = files['smollm2'], files['smollm2'].read_bytes()
    reader = gguf.GGUFReader(file)
    metadata = reader.fields['tokenizer.ggml.tokens'].offset
    types = reader.fields['tokenizer.ggml.token_type'].offset
    table, data = reader.tensors[0].field.offset, reader.data_offset
    del reader
    places = [1, 4, 6, 8, 15, 23, 24, 30, metadata + 8, metadata + 90,
              types + 40, types + 300, table - 1, table, table + 5,
              table + 40, data - 40, data, data + 1, len(whole) - 40]
    for place in places:
        file.write_bytes(whole[:place])
        message = refused('smollm2', files)
        assert message.startswith('no whole GGUF file'), f'{place}: {message}'


@pytest.mark.parametrize('damage', [b'', b'x' * 999, b'GGUF', b'GGUF' * 99])
def test_what_is_no_gguf_file_is_named(refused, tmp_path, damage):
    (tmp_path / 'smollm2.gguf').write_bytes(damage)
    assert refused('smollm2', {'smollm2': tmp_path / 'smollm2.gguf'}
                   ).startswith('no whole GGUF file')


@pytest.mark.parametrize('key', VOCABULARY)
def test_a_gguf_file_without_its_tokenizer_is_named(refused, tmp_path, key):
    files = llama_file(tmp_path, **{key: None})
    assert refused('smollm2', files) == (
        f'no tokenizer.ggml.{key} in its metadata')


TOKENS = VOCABULARY['tokens']


@pytest.mark.parametrize('vocabulary, message', [
    (dict(tokens=[*range(V)]), 'tokens in its metadata is no list of STRING'),
    (dict(merges=[1, 2]), 'merges in its metadata is no list of STRING'),
    (dict(token_type=['1'] * V),
     'token_type in its metadata is no list of INT32'),
    (dict(token_type=[3] + [1] * (V - 3)), 'shorter than'),
    (dict(tokens=TOKENS[:-1]), 'longer than'),
    (dict(merges=['b a']), 'merges are not in the order'),
    (dict(tokens=[*TOKENS[:9], TOKENS[8], *TOKENS[10:]]),
     f'the ids are not 0 to {V - 2}, or a token is there twice'),
    (dict(tokens=[*TOKENS[:9], '日', *TOKENS[10:]]),
     "token '日' is not written in the characters that stand for bytes")],
    ids=lambda x: None if isinstance(x, dict) else x[:20])
def test_a_tokenizer_that_is_none_is_refused(refused, tmp_path, vocabulary,
                                             message):
    """By a ValueError; tiktoken would assert, or give other ids."""
    assert message in refused('smollm2', llama_file(tmp_path, **vocabulary))


def test_a_count_past_the_end_of_a_gguf_file_is_refused(refused, tmp_path):
    """The library would go on and add nothing, as often as it says."""
    count = 10**5  # with a byte flipped it may be 2**56, which is for ever
    file = tmp_path / 'smollm2.gguf'
    file.write_bytes(b'GGUF' + struct.pack('<IQQQ', 3, 0, 1, 1) + b'x'
                     + struct.pack('<IIQ', 9, 0, count) + b'abc')
    assert refused('smollm2', {'smollm2': file}).startswith(
        'no whole GGUF file')


def test_arrays_in_arrays_without_an_end_are_refused(refused, tmp_path):
    file = tmp_path / 'smollm2.gguf'
    file.write_bytes(b'GGUF' + struct.pack('<IQQQ', 3, 0, 1, 1) + b'x'
                     + struct.pack('<I', 9)
                     + 9999 * struct.pack('<IQ', 9, 1))
    assert refused('smollm2', {'smollm2': file}).startswith(
        'no whole GGUF file')


@pytest.mark.parametrize('kind, array', [
    ('Q8_1', np.zeros((32, 40), np.uint8)),
    ('I32', np.zeros((32, 32), np.int32)),
    ('F64', np.zeros((32, 32), np.float64))])
def test_a_type_the_library_cannot_undo_is_named(refused, tmp_path, kind,
                                                 array):
    tensors = llama_tensors()
    del tensors['blk.0.attn_q.weight']
    files = llama_file(tmp_path, tensors, raw={
        'blk.0.attn_q.weight': (array, gguf.GGMLQuantizationType[kind])})
    assert refused('smollm2', files) == (
        f'tensor blk.0.attn_q.weight: type {kind}, which cannot be turned '
        'into fp32')


DAMAGE = st.tuples(st.lists(st.tuples(
    st.integers(0, 2**30), st.one_of(st.sampled_from([0, 1, 9, 127, 255]),
                                     st.integers(0, 255))),
    min_size=1, max_size=4), st.booleans())


@pytest.fixture(scope='module')
def whole_files(tmp_path_factory):
    """whole_files(checkpoint): paths, hub's name, bytes, end of header."""
    files = {name: small(tmp_path_factory.mktemp(name))
             for name, (_, small) in SMALL.items()}
    reader = gguf.GGUFReader(files['smollm2']['smollm2'])
    data = int(reader.data_offset)
    weights = {'gpt2': 'gpt2-weights', 'smollm2': 'smollm2'}
    wholes = {name: files[name][asset].read_bytes()
              for name, asset in weights.items()}
    ends = {'gpt2': header_end(wholes['gpt2']), 'smollm2': data}
    # a function: on a failure pytest would print every byte of a dict
    return lambda name: (files[name], weights[name], wholes[name],
                         ends[name])


@pytest.mark.parametrize('name', SMALL)
@settings(max_examples=100, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=DAMAGE)
def test_bytes_that_flip_are_read_or_refused(whole_files, shapes, name,
                                             damage):
    """Never another error than ValueError, and never without an end."""
    files, asset, whole, end = whole_files(name)
    flips, cut = damage
    found = bytearray(whole)
    for place, byte in flips:  # most of a file is plain numbers
        found[place % end] = byte
    if cut:
        found = found[:flips[0][0] % len(found)]
    # a new name: the old file may still be mapped
    file = files[asset].with_name('damaged')
    file.unlink(missing_ok=True)
    file.write_bytes(found)
    others = [files[other] for other in CHECKPOINTS[name].assets[1:]]
    checkpoint = replace(CHECKPOINTS[name], sizes=SMALL[name][0])
    try:
        published, encoding = checkpoint.read(file, *others)
        Shapes(shapes[name]).fill(checkpoint.rename(published, shapes[name]))
        encoding()
    except ValueError:
        pass


# Other projects' models as the reference


@pytest.mark.slow
def test_a_published_gpt2_file_gives_hugging_faces_logits(backend, use,
                                                          tmp_path):
    """Random weights in the published names, masks and all, to 1e-4."""
    from transformers import GPT2Config, GPT2LMHeadModel
    theirs = GPT2LMHeadModel(GPT2Config(
        vocab_size=V, n_positions=16, n_embd=12, n_layer=L, n_head=3,
        bos_token_id=0, eos_token_id=0)).eval()
    files, state = gpt2_files(tmp_path), theirs.transformer.state_dict()
    named = {name: x for name, x in gpt2_tensors().items()
             if not name.endswith('.attn.bias')}
    assert state.keys() - named.keys() <= {
        f'h.{i}.attn.{mask}' for i in range(L) for mask in ('bias',
                                                            'masked_bias')}
    theirs.transformer.load_state_dict(
        {name: torch.as_tensor(x) for name, x in named.items()}, strict=False)
    use('gpt2', files)
    X = ids(3, B, T, vocab=V)
    with torch.no_grad():
        expected = theirs(torch.as_tensor(X)).logits.numpy()
    model = load(backend, 'gpt2')[0]
    check_close(backend.full(model, X), expected, 1e-4, 'GPT-2')


def test_the_table_of_smollm2_is_the_files(smollm2_gguf):
    """Sizes as in the metadata, the feed-forward width included."""
    def metadata(key):
        return smollm2_gguf.reader.get_field(key).contents()

    sizes = CHECKPOINTS['smollm2'].sizes
    for ours, theirs in dict(
            num_blks='block_count', num_hiddens='embedding_length',
            num_heads='attention.head_count', base='rope.freq_base',
            num_kv_heads='attention.head_count_kv',
            max_len='context_length', vocab_size='vocab_size').items():
        assert sizes[ours] == metadata(f'llama.{theirs}'), ours
    assert sizes['epsilon'] == pytest.approx(metadata(
        'llama.attention.layer_norm_rms_epsilon'))
    assert sizes['vocab_size'] == len(metadata('tokenizer.ggml.tokens'))
    assert metadata('llama.rope.dimension_count') == (
        sizes['num_hiddens'] // sizes['num_heads'])
    width = BACKENDS['torch'].d2l.FFN(sizes['num_hiddens']).W_1.out_features
    assert width == metadata('llama.feed_forward_length')
    assert not [name for name in smollm2_gguf.stored if name.endswith('bias')]


@pytest.fixture(scope='module')
def smollm2(smollm2_gguf):
    """Both backends' models: {backend: (model, encoding)}, loaded once."""
    return {name: backend.d2l.load_smollm2()
            for name, backend in BACKENDS.items()}


@pytest.fixture(scope='module')
def text_ids(smollm2_gguf):
    """The first 1024 tokens of the run's text, (1, 1024)."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(runs, 'latest', None)
        text = read_text()
    return np.array([smollm2_gguf.encoding.encode_ordinary(text)[:1024]])


@pytest.fixture(scope='module')
def smollm2_logits(smollm2_gguf, text_ids):
    """Those of transformers on the first 64 tokens."""
    from pathlib import Path

    from transformers import AutoModelForCausalLM
    file = Path(smollm2_gguf.file)
    with pytest.MonkeyPatch.context() as m:  # it would be parsed twice more
        m.setattr(gguf, 'GGUFReader', lambda _: smollm2_gguf.reader)
        m.setattr(gguf, 'get_tensor_name_map',  # a new one for each module
                  functools.cache(gguf.get_tensor_name_map))
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.as_tensor(text_ids[:, :64])).logits.numpy()


LOADING = """
import time
from d2l_ext import {backend} as d2l, runs
before, start = runs.peak_bytes(), time.perf_counter()
model, encoding = d2l.load_smollm2()
print(runs.peak_bytes() - before, time.perf_counter() - start)
"""


@pytest.mark.slow
def test_loading_takes_memory_for_one_copy_and_seconds(backend, smollm2_gguf):
    """In a process of its own: the weights, and three quarters more at most.

    What is there besides, for a moment: the file, mapped and parsed, and the
    largest tensor, a fifth of all weights, once in NumPy and once turned.
    """
    done = subprocess.run(
        [sys.executable, '-c', LOADING.format(backend=backend.name)],
        text=True, capture_output=True, check=True, timeout=300)
    peak, seconds = map(float, done.stdout.split()[-2:])
    weights = 4 * 134_515_008
    assert weights < peak < 1.75 * weights, f'{peak / weights:.2f} copies'
    assert seconds < 60, f'{seconds:.0f} s'


@pytest.mark.slow
def test_smollm2_gives_hugging_faces_logits(backend, smollm2, text_ids,
                                            smollm2_logits):
    """On real text, within 5e-4 at a scale of about 40."""
    model, encoding = smollm2[backend.name]
    assert (encoding.name, encoding.n_vocab) == ('smollm2', 49152)
    logits = backend.full(model, text_ids[:, :64])
    scale = np.abs(smollm2_logits).max()
    assert 20 < scale < 80, scale
    error = np.abs(logits - smollm2_logits).max()
    assert error < 5e-4, f'off by {error:.1e} at scale {scale:.1f}'


@pytest.fixture(scope='module')
def keys_and_values(smollm2, text_ids):
    """Those of a middle block for 1024 tokens, one row each: (T, 2 G hd)."""
    model, _ = smollm2['torch']
    with torch.inference_mode():
        X = model.token_emb(torch.as_tensor(text_ids))
        for blk in model.blks[:15]:
            X = blk(X)
        Z = model.blks[15].before_attention(X)
        _, k, v = model.blks[15].attention.project(Z, Z, Z)
        return torch.cat([x.transpose(1, 2).flatten(2)[0] for x in (k, v)],
                         dim=1).numpy()


@pytest.mark.slow
def test_fp32_decompositions_are_those_of_float64(backend, keys_and_values):
    """Values to 1e-6 of the largest; vectors up to sign where apart."""
    A = keys_and_values
    assert A.shape == (1024, 384) and A.dtype == np.float32
    svd = {'torch': torch.linalg.svd, 'jax': jnp.linalg.svd}[backend.name]
    U, s, Vt = map(backend.numpy, svd(backend.array(A), full_matrices=False))
    U64, s64, Vt64 = np.linalg.svd(A.astype(np.float64), full_matrices=False)
    error = np.abs(s - s64).max() / s64[0]
    assert error < 1e-6, f'singular values off by {error:.1e} of the largest'
    check_close((U * s) @ Vt, A, 1e-4, 'reconstruction')
    gap = np.minimum(-np.diff(s64, prepend=np.inf),
                     -np.diff(s64, append=-np.inf))
    clear = gap > 1e-3 * s64[0]
    assert clear.sum() > 5
    for name, a, b in (('left', U.T, U64.T), ('right', Vt, Vt64)):
        dots = np.abs((a[clear] * b[clear]).sum(-1))
        assert dots.min() > 0.9999, f'{name}: |dot| of {dots.min():.6f}'
