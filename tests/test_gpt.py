"""The model: the same function in both backends, in NumPy, and elsewhere."""

import itertools

import numpy as np
import numpy_model
import pytest
import torch
from backends import BACKENDS

V, H, HD, L, B, T = 31, 3, 4, 2, 2, 7
FORMS = [dict(pos=pos, norm=norm, act=act, pre_norm=pre_norm, bias=bias)
         for pos, norm, act, pre_norm, bias in itertools.product(
             ('rope', 'learned'), ('rms', 'layer'), ('swiglu', 'gelu'),
             (True, False), (True, False))]


def ids(seed, *shape):
    return np.random.default_rng(seed).integers(0, V, shape)


def random_weights(model, backend):
    """Weights of order one: zero biases would hide a bias left out."""
    rng = np.random.default_rng(0)
    return {name: (rng.normal(size=a.shape) / np.sqrt(a.shape[-1])
                   ).astype(np.float32)
            for name, a in backend.d2l.get_weights(model).items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    'form', FORMS, ids=lambda form: '-'.join(map(str, form.values())))
def test_three_models_agree_in_every_form(form):
    """Same weights, same ids: torch, JAX and NumPy give the same logits."""
    t, j = (b.gpt(V, H * HD, H, 1, max_len=16, **form)
            for b in BACKENDS.values())
    weights = random_weights(t, BACKENDS['torch'])
    X, logits = ids(1, B, T), {}
    for backend, model in zip(BACKENDS.values(), (t, j), strict=True):
        backend.d2l.set_weights(model, weights)
        logits[backend.name] = backend.eager(model, X)
    only = {k: x for k, x in form.items() if k != 'bias'}
    logits['numpy'] = numpy_model.logits(weights, X, H, 1, **only)
    scale = np.abs(logits['numpy']).max()
    for a, b in itertools.combinations(logits, 2):
        error = np.abs(logits[a] - logits[b]).max() / scale
        assert error < 1e-4, f'{a} and {b} differ by {error:.1e} of the scale'


def test_gpt2_size_has_the_published_number_of_parameters():
    """123,551,232 by the shapes alone, in both backends."""
    import jax
    from flax import nnx

    from d2l_ext import jax as d2l_jax
    from d2l_ext import torch as d2l_torch
    size = dict(vocab_size=50257, num_hiddens=768, num_heads=12, num_blks=12)
    with torch.device('meta'):
        model = d2l_torch.GPT(**size)
    assert sum(p.numel() for p in model.parameters()) == 123_551_232
    state = nnx.state(nnx.eval_shape(lambda: d2l_jax.GPT(**size)), nnx.Param)
    assert sum(x.size for x in jax.tree.leaves(state)) == 123_551_232


def test_embeddings_start_small(backend):
    """Normal with standard deviation 0.02, tokens and positions."""
    model = backend.gpt(1009, 64, 2, 1, max_len=499, pos='learned')
    weights = backend.d2l.get_weights(model)
    for name in ('token_emb.weight', 'pos_emb.weight'):
        assert abs(weights[name].std() - 0.02) < 0.001
        assert abs(weights[name].mean()) < 0.001


def test_the_names_of_the_book(backend):
    """The attributes that the book's cells reach for are there."""
    model = backend.gpt(V, H * HD, H, L, pos='learned', max_len=9)
    for name in ('token_emb', 'pos_emb', 'pos', 'max_len', 'blks', 'norm'):
        assert hasattr(model, name), name
    assert not hasattr(backend.gpt(V, H * HD, H, L), 'pos_emb')
    blk = model.blks[0]
    for name in ('attention', 'norm1', 'norm2', 'ffn'):
        assert hasattr(blk, name), name
    assert isinstance(blk.attention, backend.d2l.GPT.CausalAttention)
    assert blk.attention.num_heads == H and blk.attention.rope is False
    assert len(model.blks) == L and model.max_len == 9


def test_the_swiglu_width_is_two_thirds_of_gelu(backend):
    weights = backend.d2l.get_weights(backend.gpt(V, 20, 5, 1))
    assert weights['blks.0.ffn.W_1.weight'].shape == (53, 20)  # 8 * 20 / 3
    weights = backend.d2l.get_weights(backend.gpt(V, 20, 5, 1, act='gelu'))
    assert weights['blks.0.ffn.W_1.weight'].shape == (80, 20)


@pytest.mark.parametrize('wrong, message', [
    (dict(pos='rotary'), "pos='rotary'.*'rope', 'learned'"),
    (dict(norm='batch'), "norm='batch'"), (dict(act='relu'), "act='relu'"),
    (dict(num_heads=5), 'num_hiddens=12 .* num_heads=5'),
    (dict(num_heads=4), 'head width is 3'), (dict(num_heads=0), 'num_heads=0'),
    (dict(num_heads=-3), 'num_heads=-3'), (dict(num_blks=0), 'num_blks=0'),
    (dict(max_len=0), 'max_len=0'), (dict(max_len=2.5), 'max_len=2.5'),
    (dict(dropout=1.5), 'dropout=1.5')])
def test_bad_choices_are_named(backend, wrong, message):
    size = {'num_hiddens': 12, 'num_heads': 3, 'num_blks': 1, **wrong}
    with pytest.raises(ValueError, match=message):
        backend.gpt(V, **size)


def test_more_than_max_len_tokens_are_refused(backend):
    model = backend.gpt(V, H * HD, H, 1, max_len=4)
    backend.full(model, ids(0, 1, 4))
    with pytest.raises(ValueError, match='0 tokens . 5 new > 4'):
        backend.full(model, ids(0, 1, 5))


def test_no_token_sees_a_later_one(backend):
    """Changing token 4 leaves the logits of tokens 0 to 3 as they were."""
    model, X = backend.gpt(V, H * HD, H, L), ids(2, B, T)
    other = X.copy()
    other[:, 4] = (X[:, 4] + 1) % V
    a, b = backend.full(model, X), backend.full(model, other)
    np.testing.assert_allclose(a[:, :4], b[:, :4], atol=1e-6)
    assert np.abs(a[:, 4:] - b[:, 4:]).max(axis=(0, 2)).min() > 1e-4


def test_rope_depends_on_distances_only(backend):
    """<rope(q, m), rope(k, n)> is a function of m - n, at any offset."""
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, 1, 1, 8)).astype(np.float32)

    def score(m, n):
        return (backend.rope(q, offset=m) * backend.rope(k, offset=n)).sum()

    assert abs(score(3, 1) - score(502, 500)) < 1e-4
    assert abs(score(3, 1) - score(3, 2)) > 1e-3


def test_rope_turns_interleaved_pairs(backend):
    """Rows, pairs, base and offset as in the definition, per entry."""
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 4)).astype(np.float32)
    y, expected = backend.rope(x, offset=7, base=100), np.empty_like(x)
    for t in range(5):
        for i in range(2):
            angle = (7 + t) * 100 ** (-2 * i / 4)
            a, b = x[..., t, 2 * i], x[..., t, 2 * i + 1]
            expected[..., t, 2 * i] = a * np.cos(angle) - b * np.sin(angle)
            expected[..., t, 2 * i + 1] = a * np.sin(angle) + b * np.cos(angle)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_angles_are_fp32_for_bf16_inputs(backend):
    """At position 1001 bf16 angles would be off by whole turns."""
    x = np.ones((1, 1, 1, 8), np.float32)
    exact = backend.rope(x, offset=1001)
    if backend.name == 'torch':
        y = backend.d2l.rope(torch.ones(1, 1, 1, 8, dtype=torch.bfloat16),
                             offset=1001)
    else:
        import jax.numpy as jnp
        y = backend.d2l.rope(jnp.ones((1, 1, 1, 8), jnp.bfloat16),
                             offset=1001)
    assert 'bfloat16' in str(y.dtype)
    np.testing.assert_allclose(backend.numpy(y), exact, atol=0.01)


# Hugging Face's names for GPT-2, ours in their place
GPT2_NAMES = {'ln_1': 'norm1', 'ln_2': 'norm2', 'attn.c_attn': 'attention.'
              'W_qkv', 'attn.c_proj': 'attention.W_o', 'mlp.c_fc': 'ffn.W_1',
              'mlp.c_proj': 'ffn.W_2'}


@pytest.fixture(scope='module')
def hugging_face_gpt2():
    """A small random GPT-2 of another project: (weights, ids, logits)."""
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=V, n_positions=16, n_embd=H * HD, n_layer=L, n_head=H,
        initializer_range=0.3)).eval()
    with torch.no_grad():  # zero biases would hide a bias left out
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    state = {k.removeprefix('transformer.'): v.numpy()
             for k, v in model.state_dict().items()}
    weights = {'token_emb.weight': state['wte.weight'],
               'pos_emb.weight': state['wpe.weight']}
    for kind in ('weight', 'bias'):
        weights[f'norm.{kind}'] = state[f'ln_f.{kind}']
        for i, (theirs, ours) in itertools.product(
                range(L), GPT2_NAMES.items()):
            a = state[f'h.{i}.{theirs}.{kind}']  # its linear maps: (in, out)
            weights[f'blks.{i}.{ours}.{kind}'] = a.T
    X = ids(3, B, T)
    with torch.no_grad():
        return weights, X, model(torch.as_tensor(X)).logits.numpy()


@pytest.mark.slow
def test_our_gpt_is_hugging_faces_gpt2(backend, hugging_face_gpt2):
    """A random GPT2LMHeadModel, copied, gives its logits."""
    weights, X, expected = hugging_face_gpt2
    model = backend.gpt(V, H * HD, H, L, max_len=16, pos='learned',
                        norm='layer', act='gelu', bias=True)
    backend.d2l.set_weights(model, weights)
    error = np.abs(backend.full(model, X) - expected).max()
    scale = np.abs(expected).max()
    assert error < 1e-5 * scale, f'off by {error:.1e} at scale {scale:.1f}'
