"""Published checkpoints in the book's model."""

import jax
import jax.numpy as jnp
from flax import nnx

from .. import runs
from ..checkpoints import CHECKPOINTS
from .gpt import GPT
from .weights import set_weights, weight_shapes

__all__ = ['load_gpt2', 'load_smollm2', 'load_checkpoint']


def build(**sizes):
    """A GPT whose parameters are shapes, without memory, to be set.

    To draw random ones first would take seconds and a second copy.
    """
    graphdef, params, keys, counts = nnx.split(
        nnx.eval_shape(lambda: GPT(**sizes)), nnx.Param, nnx.RngKey,
        nnx.RngCount)  # the last two are those of dropout
    leaves, form = jax.tree.flatten(keys)
    keys = jax.tree.unflatten(form, [
        *jax.random.split(jax.random.key(0), len(leaves))])
    counts = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), counts)
    model = nnx.merge(graphdef, params, keys, counts)
    model.eval()
    return model


def load(name):
    return CHECKPOINTS[name].load(build, weight_shapes, set_weights)


def load_gpt2():
    """(model, encoding): GPT-2 with 124M parameters, in evaluation mode.

    The model is on the GPU if there is one; the encoding is a
    `tiktoken.Encoding`. FileNotFoundError that says how to get a file;
    ValueError that names file and tensor where one is not right.
    """
    return load('gpt2')


def load_smollm2():
    """(model, encoding): SmolLM2-135M-Instruct; see load_gpt2.

    Its file is quantized, to four bits and scales for most matrices; the
    model has what comes out of it in fp32.
    """
    return load('smollm2')


def load_checkpoint():
    """(model, encoding, name) of the checkpoint of this run."""
    name = runs.checkpoint()
    return *load(name), name
