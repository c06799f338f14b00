"""The ways to decode in JAX.

None grows its cache: JAX would compile anew for every length.

B batch, T new tokens, V vocabulary
"""

import time

import jax
import jax.numpy as jnp

from .. import jax as d2l
from ..jax.gpt import logits_before
from .measure import Method, forget_peak


def load(model_sizes, filename):
    """The model of these sizes with the weights of a file."""
    model = d2l.GPT(**model_sizes)
    d2l.load_weights(model, filename)
    model.eval()
    return model


def device():
    kind = d2l.try_gpu()
    return 'CPU' if kind.platform == 'cpu' else kind.device_kind


forget = forget_peak  # of a GPU, JAX keeps one peak for the whole process


@jax.jit
def most_likely(logits):
    return logits.argmax(-1, keepdims=True).astype(jnp.int32)  # (B, 1)


def greedy(logits):
    return jax.block_until_ready(most_likely(logits))


class JaxMethod(Method):
    """Prompts as an array."""

    def __init__(self, model, prompts, steps):
        super().__init__(model, prompts, steps)
        self.X = jnp.asarray(prompts, jnp.int32)


class Naive(JaxMethod):
    """As `GPT.generate`: one compiled pass, later slots are not seen."""

    most_steps = 3

    def read(self):
        self.buffer = jnp.pad(self.X, ((0, 0), (0, self.steps)))
        return greedy(logits_before(self.model, self.buffer, self.context))

    def step(self, token, i):
        t = self.context + i
        self.buffer = jax.lax.dynamic_update_slice(self.buffer, token, (0, t))
        return greedy(logits_before(self.model, self.buffer, t + 1))


class Static(JaxMethod):
    """A step gets buffers and makes new ones."""

    @staticmethod
    def chunk(*args):
        return d2l.cached_forward(*args)

    def feed(self, X, t):
        logits, *self.buffers = self.chunk(self.model, *self.buffers, X, t)
        return greedy(logits)

    def read(self):
        self.buffers = d2l.init_cache(self.model, len(self.X),
                                      self.context + self.steps)
        return self.feed(self.X, 0)

    def step(self, token, i):
        return self.feed(token, self.context + i)


class Donated(Static):
    """A step writes into the buffers that it gets."""

    @staticmethod
    def chunk(*args):
        return d2l.donated_chunk(*args)


class Fast(JaxMethod):
    """What `generate_batch` does: the prompts, then one call for all steps.

    Nothing is padded: a context here is a multiple of 64 or nearly none.
    """

    how = dict(temperature=1.0, greedy=True, top_k=None)

    def read(self):
        B, room = len(self.X), d2l.round_up(self.context + self.steps)
        self.modules = d2l.fast_modules(self.model)
        self.starts = jnp.zeros(B, jnp.int32)
        self.keys = jax.random.split(jax.random.key(0), room)
        token, *self.cache = jax.block_until_ready(d2l.fast_prefill(
            self.modules, self.X, self.starts, self.keys[0], room=room,
            **self.how))
        self.first = token
        return token

    def decode(self, steps):
        start = time.perf_counter()
        ids, *_ = jax.block_until_ready(d2l.fast_loop(
            self.modules, self.first, *self.cache, self.context, self.starts,
            self.keys, steps + 1, **self.how))
        seconds = (time.perf_counter() - start) / steps
        self.ids = ids[0, :steps + 1].tolist()
        return seconds


METHODS = {'naive': Naive, 'static': Static, 'donated': Donated,
           'fast': Fast}
bandwidth, peak = d2l.read_bandwidth, d2l.peak_memory
