"""One token from the logits of the last position."""

import functools

import jax
import jax.numpy as jnp

from ..checks import check_sampling

__all__ = ['sample_token']


def sample_token(logits, temperature=1.0, top_k=None, key=None):
    """Draw one id per row of logits (B, V); returns (B, 1).

    temperature 0 takes the likeliest token. top_k keeps exactly so many
    tokens, at most all; of equal logits the lowest ids stay. key: a random
    key, needed unless temperature is 0. A traced temperature is taken to be
    above 0. ValueError for a temperature below 0 or a top_k below 1.
    """
    if isinstance(temperature, jax.core.Tracer):
        check_sampling(1.0, top_k)
    else:
        check_sampling(temperature, top_k)
        if temperature == 0:
            return greedy(logits)
        temperature = float(temperature)
    if key is None:
        raise ValueError('key=None: expected a random key to draw with')
    return draw(logits, temperature, top_k, key)


@jax.jit
def greedy(logits):
    return logits.argmax(-1, keepdims=True).astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=('top_k',))
def draw(logits, temperature, top_k, key):
    logits = logits.astype(jnp.float32) / temperature
    # of equal logits, lax.top_k takes the lower id first
    logits, ids = jax.lax.top_k(
        logits, min(top_k or logits.shape[-1], logits.shape[-1]))
    drawn = jax.random.categorical(key, logits)[:, None]
    return jnp.take_along_axis(ids, drawn, axis=-1)
