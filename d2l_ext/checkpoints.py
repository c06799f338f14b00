"""Pretrained models in the book's names: which file, which tensor is which.

A checkpoint is a table, read by both backends. Tensors come one at a time,
when they are copied into a model, so memory holds the weights about once.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import safetensors

from . import hub
from .encodings import gpt2_encoding, smollm2_encoding
from .files import naming

# shared name -> published name, without .weight or .bias; * is a block
GPT2_NAMES = {
    'token_emb': 'wte',
    'pos_emb': 'wpe',
    'blks.*.norm1': 'h.*.ln_1',
    'blks.*.attention.W_qkv': 'h.*.attn.c_attn',
    'blks.*.attention.W_o': 'h.*.attn.c_proj',
    'blks.*.norm2': 'h.*.ln_2',
    'blks.*.ffn.W_1': 'h.*.mlp.c_fc',
    'blks.*.ffn.W_2': 'h.*.mlp.c_proj',
    'norm': 'ln_f',
}
SMOLLM2_NAMES = {
    'token_emb': 'token_embd',
    'blks.*.norm1': 'blk.*.attn_norm',
    'blks.*.attention.W_q': 'blk.*.attn_q',
    'blks.*.attention.W_k': 'blk.*.attn_k',
    'blks.*.attention.W_v': 'blk.*.attn_v',
    'blks.*.attention.W_o': 'blk.*.attn_output',
    'blks.*.norm2': 'blk.*.ffn_norm',
    'blks.*.ffn.W_g': 'blk.*.ffn_gate',
    'blks.*.ffn.W_1': 'blk.*.ffn_up',
    'blks.*.ffn.W_2': 'blk.*.ffn_down',
    'norm': 'output_norm',
}


@dataclass(frozen=True)
class Stored:
    """A tensor in a file. It is read, as fp32, where an array is asked for.

    kind: its type in the file; read(): the NumPy array.
    """

    shape: tuple
    kind: str
    read: Callable
    dtype = 'float32'

    def __array__(self, dtype=None, copy=None):
        return self.read().astype(dtype or self.dtype, copy=False)

    def turned(self):
        """The same matrix, stored the other way round."""
        return Stored(self.shape[::-1], self.kind, lambda: self.read().T)


@dataclass(frozen=True)
class Checkpoint:
    """A published model: sizes: arguments of GPT; assets: names in the hub.

    names: see above; turned: published names of matrices stored (in, out);
    ignored: published names, masks that the model makes itself. read(*files):
    {published name: Stored} and a function that gives the encoding.
    """

    sizes: dict
    assets: tuple
    read: Callable
    names: dict
    turned: tuple = ()
    ignored: tuple = ()

    def load(self, model_class, shapes, fill):
        """(model, encoding), the model made and filled by a backend.

        model_class(**sizes): a GPT; shapes(model): {shared name: shape};
        fill(model, {shared name: Stored}). FileNotFoundError that says how
        to get a file that cannot be had; ValueError, naming file and tensor,
        for one that is damaged or does not fit.
        """
        file, *others = map(hub.fetch, self.assets)  # before any work
        model = model_class(**self.sizes)
        with naming(file):
            published, make_encoding = self.read(file, *others)
            tensors = self.rename(published, shapes(model))
        encoding = make_encoding()  # refused before weights are copied
        with naming(file):
            fill(model, tensors)
        return model, encoding

    def published_name(self, name):
        """What the file calls a parameter, and the pattern it fell under."""
        module, _, kind = name.rpartition('.')
        block = re.search(r'\d+', module)
        pattern = self.names[re.sub(r'\d+', '*', module, count=1)]
        return (pattern.replace('*', block[0] if block else '') + f'.{kind}',
                f'{pattern}.{kind}')

    def is_ignored(self, theirs):
        """Whether a tensor of the file is a mask of one of the blocks."""
        block = re.search(r'\.(0|[1-9]\d*)\.', theirs)
        return (block is not None and int(block[1]) < self.sizes['num_blks']
                and theirs.replace(block[0], '.*.', 1) in self.ignored)

    def rename(self, published, shapes):
        """{shared name: Stored} of a file's {published name: Stored}."""
        rest, tensors = dict(published), {}
        for name, shape in shapes.items():
            theirs, pattern = self.published_name(name)
            if theirs not in rest:
                raise ValueError(f'tensor {theirs} is missing')
            tensor = rest.pop(theirs)
            if turned := pattern in self.turned:
                tensor = tensor.turned()
            if tensor.shape != tuple(shape):
                raise ValueError(f'tensor {theirs}: shape '
                                 f'{published[theirs].shape}, expected '
                                 f'{shape[::-1] if turned else shape}')
            tensors[name] = tensor
        extra = [name for name in rest if not self.is_ignored(name)]
        if extra:
            raise ValueError(f'tensor {extra[0]} is not in the model'
                             + (f', nor are {len(extra) - 1} others'
                                if len(extra) > 1 else ''))
        return tensors


# Two kinds of files


def read_safetensors(file):
    """{name: Stored} of a safetensors file. ValueError if it is not whole."""
    def read(name):
        # opened anew each time: an open file would stay mapped, all of it
        with safetensors.safe_open(file, framework='numpy') as f:
            return f.get_tensor(name)

    try:
        with safetensors.safe_open(file, framework='numpy') as f:
            slices = {name: f.get_slice(name) for name in f.keys()}
            stored = {name: Stored(tuple(s.get_shape()), s.get_dtype(),
                                   partial(read, name))
                      for name, s in slices.items()}
    except safetensors.SafetensorError as error:
        raise ValueError(f'no whole safetensors file: {error}'
                         + first_cut(file)) from error
    for name, tensor in stored.items():
        if tensor.kind not in ('F32', 'F16'):
            raise ValueError(f'tensor {name}: type {tensor.kind}, expected '
                             'F32 or F16')
    return stored


def first_cut(file):
    """', tensor NAME is cut short': the first one that a file ends within."""
    size = Path(file).stat().st_size
    with open(file, 'rb') as f:  # a header's length, the header, all tensors
        start = 8 + int.from_bytes(f.read(8), 'little')
        header = f.read(min(start, size))[:start - 8]
    try:
        ends = {name: start + entry['data_offsets'][1]
                for name, entry in json.loads(header).items()
                if name != '__metadata__'}
    except (ValueError, LookupError, TypeError, AttributeError,
            RecursionError):
        return ''
    cut = sorted((end, name) for name, end in ends.items() if end > size)
    return f', tensor {cut[0][1]} is cut short' if cut else ''


# what a damaged length or type leads to inside of the library
DAMAGE = (ValueError, LookupError, ArithmeticError, MemoryError,
          RecursionError)


class GGUFReader(gguf.GGUFReader):
    """The library's reader, but nothing is read past the end of a file.

    There it would go on without a word, as often as a damaged count says.
    """

    def _build_tensors(self, start, fields):
        def noted():
            for self.field in fields:
                yield self.field
        try:
            super()._build_tensors(start, noted())
        except DAMAGE as error:
            raise ValueError(f'tensor {self.field.name}: {error}') from error

    def _get(self, offset, dtype, count=1, *args, **kwargs):
        self.data = np.asarray(self.data)  # slicing a memmap is slow
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise ValueError(f'it has {len(self.data)} bytes, not {end}')
        return super()._get(offset, dtype, count, *args, **kwargs)


def read_gguf(file):
    """{name: Stored} of a GGUF file, and its reader, which has the metadata.

    Quantized tensors come as fp32. ValueError if it is no whole GGUF file or
    has a quantization that the library cannot undo.
    """
    def read(tensor):
        x = np.empty(tensor.shape[::-1], np.float32)
        # rows at a time: the library takes the memory of a tensor thrice
        step = 4096 if x.ndim > 1 else len(x)
        for i in range(0, len(x), step):
            x[i:i + step] = gguf.dequantize(
                tensor.data[i:i + step] if x.ndim > 1 else tensor.data,
                tensor.tensor_type)
        return x

    try:
        with np.errstate(over='raise'):
            reader = GGUFReader(file)
    except DAMAGE as error:
        raise ValueError('no whole GGUF file, cut short or damaged: '
                         f'{error}') from error
    stored = {}
    for tensor in reader.tensors:
        kind = tensor.tensor_type.name
        if not can_dequantize(tensor.tensor_type):
            raise ValueError(f'tensor {tensor.name}: type {kind}, which '
                             'cannot be turned into fp32')
        # GGUF names the fastest axis first
        stored[tensor.name] = Stored(tuple(map(int, tensor.shape[::-1])),
                                     kind, partial(read, tensor))
    return stored, reader


def can_dequantize(kind):
    try:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        gguf.dequantize(np.zeros((1, size), np.uint8), kind)
    except (NotImplementedError, LookupError):
        return False
    return True


# The two checkpoints


def read_gpt2(weights, vocab, merges):
    return read_safetensors(weights), lambda: gpt2_encoding(vocab, merges)


def read_smollm2(file):
    stored, reader = read_gguf(file)

    def metadata(key, kind):
        field = reader.get_field(f'tokenizer.ggml.{key}')
        if field is None:
            raise ValueError(f'no tokenizer.ggml.{key} in its metadata')
        if field.types != [gguf.GGUFValueType.ARRAY, kind]:
            raise ValueError(f'tokenizer.ggml.{key} in its metadata is no '
                             f'list of {kind.name}')
        return field.contents()

    def encoding():
        text, number = gguf.GGUFValueType.STRING, gguf.GGUFValueType.INT32
        with naming(file):
            tokens, control = metadata('tokens', text), gguf.TokenType.CONTROL
            special = [token for token, kind in zip(
                tokens, metadata('token_type', number), strict=True)
                if kind == control]
            return smollm2_encoding(tokens, metadata('merges', text), special)

    return stored, encoding


CHECKPOINTS = {
    'gpt2': Checkpoint(
        sizes=dict(vocab_size=50257, num_hiddens=768, num_heads=12,
                   num_blks=12, max_len=1024, pos='learned', norm='layer',
                   act='gelu', bias=True, epsilon=1e-5),
        assets=('gpt2-weights', 'gpt2-vocab', 'gpt2-merges'),
        read=read_gpt2, names=GPT2_NAMES,
        turned=('h.*.attn.c_attn.weight', 'h.*.attn.c_proj.weight',
                'h.*.mlp.c_fc.weight', 'h.*.mlp.c_proj.weight'),
        ignored=('h.*.attn.bias', 'h.*.attn.masked_bias')),
    'smollm2': Checkpoint(
        sizes=dict(vocab_size=49152, num_hiddens=576, num_heads=9,
                   num_blks=30, max_len=8192, pos='rope', norm='rms',
                   act='swiglu', num_kv_heads=3, base=100000, epsilon=1e-5),
        assets=('smollm2',), read=read_smollm2, names=SMOLLM2_NAMES),
}
