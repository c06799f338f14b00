"""Tokenizers of pretrained models as `tiktoken.Encoding`, built offline."""

import json
from pathlib import Path

import tiktoken

from .files import naming
from .text import GPT2_PATTERN, visible_bytes

# SmolLM2 cuts at every digit first, and splits what lies between as GPT-2
# does: a digit is a word, and blanks before one all stay together, of which
# GPT-2 gives the last to the number
SMOLLM2_PATTERN = (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}"
                   r"| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+")


class Encoding(tiktoken.Encoding):
    """A `tiktoken.Encoding` that names a character it has no token for.

    A vocabulary may lack bytes that no training text had. ValueError for a
    text with one: tiktoken would panic, which `except Exception` misses.
    """

    def __init__(self, name, *, mergeable_ranks, **kwargs):
        super().__init__(name, mergeable_ranks=mergeable_ranks, **kwargs)
        self.lacking = {b for b in range(256)
                        if bytes([b]) not in mergeable_ranks}

    def check(self, text):
        """ValueError if the vocabulary lacks a byte of the text."""
        if not self.lacking.isdisjoint(text.encode(errors='replace')):
            char = next(c for c in text if not self.lacking.isdisjoint(
                c.encode(errors='replace')))
            raise ValueError(f'{self.name} has no token for the character '
                             f'{char!r} (at {text.index(char)}): remove or '
                             'replace it')

    def encode(self, text, **kwargs):
        self.check(text)
        return super().encode(text, **kwargs)

    def encode_ordinary(self, text):
        self.check(text)
        return super().encode_ordinary(text)

    def encode_to_numpy(self, text, **kwargs):
        self.check(text)
        return super().encode_to_numpy(text, **kwargs)


def check_tokens(name, ids, special):
    """ValueError if ids are not 0, 1, 2, .. or a token is none of bytes."""
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f'{name}: the ids are not 0 to {len(ids) - 1}, or a '
                         'token is there twice')
    byte = visible_bytes()
    for token in ids:
        if token not in special and not byte.keys() >= set(token):
            raise ValueError(f'{name}: token {token!r} is not written in the '
                             'characters that stand for bytes')


def build(name, pattern, ids, merges, special):
    """An `Encoding` from {token as written in files: id} and merges 'a b'.

    special: tokens of the vocabulary that no merge makes. ValueError if a
    merge is not in the order of ids, which is the one tiktoken goes by, and
    as `check_tokens`.
    """
    check_tokens(name, ids, special)
    made = [ids.get(merge.replace(' ', '')) for merge in merges]
    if None in made or made != sorted(set(made)):
        raise ValueError(f'{name}: the merges are not in the order of the '
                         'vocabulary')
    byte = visible_bytes()
    ranks = {bytes(byte[c] for c in token): i for token, i in ids.items()
             if token not in special}
    return Encoding(name, pat_str=pattern, mergeable_ranks=ranks,
                    special_tokens={token: ids[token] for token in special},
                    explicit_n_vocab=len(ids))


def gpt2_encoding(vocab_file, merges_file):
    """GPT-2's tokenizer, from its vocabulary and its merges.

    ValueError for a damaged one, naming it.
    """
    end = '<|endoftext|>'
    with naming(vocab_file):
        ids = json.loads(Path(vocab_file).read_text(encoding='utf-8'))
        if not isinstance(ids, dict) or any(
                type(i) is not int for i in ids.values()):
            raise ValueError('no table of ids')
        if end not in ids:
            raise ValueError(f'no {end} in it')
        check_tokens('gpt2', ids, [end])
    with naming(merges_file):
        version, *merges = Path(merges_file).read_text(
            encoding='utf-8').splitlines()
        return build('gpt2', GPT2_PATTERN, ids, merges, [end])


def smollm2_encoding(tokens, merges, special):
    """SmolLM2's tokenizer, from the lists that its GGUF file carries."""
    ids = {token: i for i, token in enumerate(tokens)}
    return build('smollm2', SMOLLM2_PATTERN, ids, merges, special)
