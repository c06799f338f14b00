"""Cells that build a cache on the book's names alone run as they are.

They know the attributes of `GPT` and nothing of what this project adds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch.nn import functional as F


@pytest.mark.parametrize('pos', ['rope', 'learned'])
def test_a_torch_cell_on_the_books_names(pos, monkeypatch):
    """Methods added to the classes by name, one dict per block."""
    from d2l_ext import torch as d2l
    for cls, name in ((d2l.GPT.CausalAttention, 'forward_step'),
                      (d2l.GPT, 'forward_cached')):
        monkeypatch.setattr(cls, name, None)  # put back after the test

    @d2l.add_to_class(d2l.GPT.CausalAttention)
    def forward_step(self, X, cache):
        B, T, D = X.shape
        q, k, v = self.W_qkv(X).reshape(B, T, 3, self.num_heads, -1).permute(
            2, 0, 3, 1, 4)
        past = cache['k'].shape[2] if 'k' in cache else 0
        if self.rope:
            q, k = d2l.rope(q, past), d2l.rope(k, past)
        if past:
            k = torch.cat((cache['k'], k), dim=2)
            v = torch.cat((cache['v'], v), dim=2)
        cache['k'], cache['v'] = k.contiguous(), v.contiguous()
        Y = F.scaled_dot_product_attention(q, k, v, is_causal=past == 0)
        return self.W_o(Y.transpose(1, 2).reshape(B, T, D))

    @d2l.add_to_class(d2l.GPT)
    def forward_cached(self, X, caches):
        past = caches[0]['k'].shape[2] if 'k' in caches[0] else 0
        H = self.token_emb(X)
        if self.pos == 'learned':
            H = H + self.pos_emb(torch.arange(past, past + X.shape[1]))
        for blk, cache in zip(self.blks, caches, strict=True):
            H = H + blk.attention.forward_step(blk.norm1(H), cache)
            H = H + blk.ffn(blk.norm2(H))
        return self.norm(H) @ self.token_emb.weight.T

    torch.manual_seed(0)
    model = d2l.GPT(97, 24, 4, 3, pos=pos).to(d2l.try_gpu()).eval()
    X, caches = torch.randint(0, 97, (1, 12)), [{} for _ in model.blks]
    with torch.no_grad():
        full = model(X)
        out = [model.forward_cached(X[:, :5], caches)]
        out += [model.forward_cached(X[:, t:t + 1], caches)
                for t in range(5, 12)]
    error = (torch.cat(out, dim=1) - full).abs().max().item()
    assert error < 1e-5, f'off by {error:.1e}'


@pytest.mark.slow
@pytest.mark.parametrize('pos', ['rope', 'learned'])
def test_a_jax_cell_on_the_books_names(pos):
    """A function under nnx.jit on stacked buffers, t traced."""
    from d2l_ext import jax as d2l

    @nnx.jit
    def step(model, ks, vs, X, t):
        B, T = X.shape
        H = model.token_emb(X)
        if model.pos == 'learned':
            H = H + model.pos_emb(t + jnp.arange(T))
        seen = jnp.arange(ks.shape[2])[None] <= (t + jnp.arange(T))[:, None]
        for i, blk in enumerate(model.blks):
            att = blk.attention
            q, k, v = jnp.split(att.W_qkv(blk.norm1(H)), 3, axis=-1)
            q, k, v = (x.reshape(B, T, att.num_heads, -1) for x in (q, k, v))
            if att.rope:
                q, k = d2l.rope(q, t), d2l.rope(k, t)
            ks = ks.at[i].set(jax.lax.dynamic_update_slice(
                ks[i], k, (0, t, 0, 0)))
            vs = vs.at[i].set(jax.lax.dynamic_update_slice(
                vs[i], v, (0, t, 0, 0)))
            Y = jax.nn.dot_product_attention(q, ks[i], vs[i],
                                             mask=seen[None, None])
            H = H + att.W_o(Y.reshape(B, T, -1))
            H = H + blk.ffn(blk.norm2(H))
        return model.token_emb.attend(model.norm(H))[:, -1], ks, vs

    model = d2l.GPT(97, 24, 4, 2, pos=pos, rngs=nnx.Rngs(1))
    X = jnp.asarray(np.random.default_rng(0).integers(0, 97, (1, 12)))
    full, (ks, vs) = model(X), d2l.init_cache(model, 1, 16)
    logits, ks, vs = step(model, ks, vs, X[:, :5], 0)
    for t in range(5, 12):
        logits, ks, vs = step(model, ks, vs, X[:, t:t + 1], t)
    error = jnp.abs(logits - full[:, -1]).max().item()
    assert error < 1e-5, f'off by {error:.1e}'
