"""What is measured: the models, the methods, and the bytes of a step."""

import math
from dataclasses import dataclass

import numpy as np
import safetensors

from ..formulas import bytes_moved, cache_bytes

SEED = 0  # of random weights and of the prompts, the same for all methods
MODELS = ('gpt2-size', 'smollm2', 'tiny')
RANDOM = {  # the first has as many parameters as GPT-2, to a percent
    'gpt2-size': dict(vocab_size=50257, num_hiddens=768, num_heads=12,
                      num_blks=12, max_len=8192),
    'tiny': dict(vocab_size=97, num_hiddens=32, num_heads=4, num_blks=2,
                 max_len=8192),
}
# method -> what it is; the part before the hyphen is who computes
METHODS = {
    'torch-naive': 'PyTorch, every token read again for each new one',
    'torch-growing': 'PyTorch, forward_cached: a cache that is concatenated',
    'torch-static': 'PyTorch, buffers of the final length, filled slices',
    'torch-fast': 'PyTorch, generate_fast',
    'jax-naive': 'JAX, a compiled pass over a buffer of the final length',
    'jax-static': 'JAX, cached_forward: buffers copied by each step',
    'jax-donated': 'JAX, donated_chunk: buffers given to each step',
    'jax-fast': 'JAX, generate_fast',
    'hf-dynamic': 'transformers, generate with its dynamic cache',
    'hf-static': 'transformers, generate with its static cache',
}
PEERS = ('hf-dynamic', 'hf-static')
DEFAULT_METHODS = tuple(METHODS)  # in `make bench` unless named


@dataclass(frozen=True)
class Plan:
    """What one call of the benchmark measures.

    contexts: tokens per prompt, ascending; steps: tokens decoded after it;
    megabytes: array size for the bandwidth; limit: seconds for a row.
    """

    models: tuple
    methods: tuple
    contexts: tuple
    batches: tuple
    steps: int
    repeats: int
    megabytes: int
    limit: float


def sizes(model):
    """Arguments of GPT."""
    if model in RANDOM:
        return RANDOM[model]
    from ..checkpoints import CHECKPOINTS  # takes a second, for a GGUF reader
    return CHECKPOINTS[model].sizes


def prompts(vocab_size, batch, context):
    """Token ids (batch, context), the same wherever they are asked for."""
    return np.random.default_rng(SEED).integers(0, vocab_size,
                                                (batch, context))


def count_parameters(filename):
    """Numbers in a safetensors file; the head is the embedding."""
    with safetensors.safe_open(filename, framework='numpy') as f:
        return sum(math.prod(f.get_slice(name).get_shape())
                   for name in f.keys())


def step_bytes(sizes, num_params, batch, context):
    """Bytes that a step has to read in fp32: all weights, all caches."""
    num_heads = sizes['num_heads']
    cache = cache_bytes(sizes['num_blks'],
                        sizes.get('num_kv_heads') or num_heads,
                        sizes['num_hiddens'] // num_heads, context, batch)
    return bytes_moved(num_params, cache=cache)
