"""Both backends behind one interface, so that a law is written once.

Arrays go in and out as NumPy. A cache is whatever the backend uses; `feed`
returns the logits of the last new token and the cache to go on with.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx

from d2l_ext import jax as d2l_jax
from d2l_ext import torch as d2l_torch

# tests run each compiled function a few times: compiling is what costs
jax.config.update('jax_disable_most_optimizations', True)


class Torch:
    name, d2l = 'torch', d2l_torch

    def gpt(self, *args, **kwargs):
        torch.manual_seed(0)
        return d2l_torch.GPT(*args, **kwargs).eval()

    def array(self, x):
        return torch.as_tensor(x)

    def numpy(self, x):
        return x.detach().float().numpy()

    def full(self, model, X):
        with torch.inference_mode():
            return self.numpy(model(torch.as_tensor(X)))

    eager = full  # torch runs op by op anyway

    def empty(self, model, batch_size, max_len):
        return [{} for _ in model.blks]

    def feed(self, model, cache, X, start):
        """The caches passed in stay as they are: a branch of its own."""
        branch = [dict(c) for c in cache]
        with torch.inference_mode():
            logits = model.forward_cached(torch.as_tensor(X), branch)
        return self.numpy(logits[:, -1]), branch

    def cached(self, cache, filled):
        """Keys and values so far, each (blocks, B, filled, H, hd)."""
        return [np.stack([self.numpy(c[name].transpose(1, 2)) for c in cache])
                for name in 'kv']

    def generate(self, model, method, *args, seed=0, **kwargs):
        torch.manual_seed(seed)
        with torch.compiler.set_stance('force_eager'):  # compiling is slow
            return getattr(model, method)(*args, **kwargs)

    def sample(self, logits, seed=0, **kwargs):
        torch.manual_seed(seed)
        return d2l_torch.sample_token(
            torch.as_tensor(logits), **kwargs).numpy()

    def rope(self, x, **kwargs):
        """x: (B, H, T, hd) in the layout of torch."""
        return self.numpy(d2l_torch.rope(torch.as_tensor(x), **kwargs))

    def bf16(self, model):
        return model.to(torch.bfloat16)

    def dtypes(self, cache):
        return {str(x.dtype).removeprefix('torch.')
                for c in cache for x in c.values()}

    def optimizer(self, model, lr):
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0)

    @contextlib.contextmanager
    def no_work(self, model, monkeypatch):
        """Inside, any pass of the model fails the test."""
        def fail(*args, **kwargs):
            raise AssertionError('work was done before the refusal')
        with monkeypatch.context() as m:
            m.setattr(d2l_torch.GPT, 'forward', fail)
            m.setattr(d2l_torch.GPT.CausalAttention, 'forward_step', fail)
            m.setattr(d2l_torch.saved, 'fast_pass', fail)
            yield


full_pass = jax.jit(lambda model, X: model(X))  # once: compiled once


@functools.cache  # a new one would be compiled for anew
def adamw(lr):
    return optax.adamw(lr, weight_decay=0)


class Jax:
    name, d2l = 'jax', d2l_jax

    def gpt(self, *args, **kwargs):
        model = d2l_jax.GPT(*args, **kwargs)
        model.eval()
        return model

    def array(self, x):
        return jnp.asarray(x)

    def numpy(self, x):
        return np.asarray(x, np.float32)

    def full(self, model, X):
        return self.numpy(full_pass(model, jnp.asarray(X)))

    def eager(self, model, X):
        """Op by op: for a model that is run once, compiling costs more."""
        return self.numpy(model(jnp.asarray(X)))

    def empty(self, model, batch_size, max_len):
        return d2l_jax.init_cache(model, batch_size, max_len)

    def feed(self, model, cache, X, start):
        logits, *cache = d2l_jax.cached_forward(
            model, *cache, jnp.asarray(X), start)
        return self.numpy(logits), cache

    def cached(self, cache, filled):
        return [self.numpy(x[:, :, :filled]) for x in cache]

    def generate(self, model, method, *args, **kwargs):
        return getattr(model, method)(*args, **kwargs)

    def sample(self, logits, seed=0, **kwargs):
        return np.asarray(d2l_jax.sample_token(
            jnp.asarray(logits), key=jax.random.key(seed), **kwargs))

    def rope(self, x, **kwargs):
        x = jnp.asarray(x).swapaxes(1, 2)
        return self.numpy(d2l_jax.rope(x, **kwargs).swapaxes(1, 2))

    def bf16(self, model):
        state = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(
            lambda x: x.astype(jnp.bfloat16), state))
        return model

    def dtypes(self, cache):
        return {str(x.dtype) for x in cache}

    def optimizer(self, model, lr):
        return nnx.Optimizer(model, adamw(lr), wrt=nnx.Param)

    @contextlib.contextmanager
    def no_work(self, model, monkeypatch):
        def fail(*args, **kwargs):
            raise AssertionError('work was done before the refusal')
        with monkeypatch.context() as m:
            m.setattr(d2l_jax.GPT, '__call__', fail)
            for name in ('jitted_chunk', 'donated_chunk', 'init_cache',
                         'fast_prefill'):
                m.setattr(d2l_jax.saved, name, fail)
            yield


BACKENDS = {b.name: b for b in (Torch(), Jax())}
