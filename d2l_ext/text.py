"""Texts, vocabularies and the windows that a language model trains on.

Everything here is NumPy: both backends get the same batches from the same
seed, and only turn them into their own arrays.
"""

import collections
import json
import re

import numpy as np
import tiktoken

from . import hub, runs
from .checks import check_sizes

# GPT-2's split into words before merging: contractions, letters, digits and
# the rest, each with the blank before it, then runs of blanks
GPT2_PATTERN = (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+"
                r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def read_text():
    """The text of this run, as a string: The Time Machine or its stand-in."""
    parts = []
    for asset in runs.TEXT_ASSETS[runs.text()]:
        with open(hub.fetch(asset), encoding='utf-8') as f:
            parts.append(f.read())
    return '\n\n'.join(parts)


class Vocab:
    """Tokens and their ids: `<unk>` is 0, then tokens by falling frequency.

    Tokens that are equally frequent stand in alphabetical order. reserved
    tokens follow `<unk>`; rarer tokens than min_freq are unknown.
    """

    def __init__(self, tokens=(), min_freq=0, reserved_tokens=()):
        counts = collections.Counter(tokens)
        self.token_freqs = sorted(counts.items(), key=lambda x: (-x[1], x[0]))
        special = ['<unk>', *reserved_tokens]
        self.idx_to_token = special + [
            token for token, count in self.token_freqs
            if count >= min_freq and token not in special]
        self.token_to_idx = {t: i for i, t in enumerate(self.idx_to_token)}

    def __len__(self):
        return len(self.idx_to_token)

    @property
    def unk(self):
        return self.token_to_idx['<unk>']

    def __getitem__(self, tokens):
        """Id of a token, or list of ids of a list of tokens."""
        if isinstance(tokens, (list, tuple)):
            return [self[token] for token in tokens]
        return self.token_to_idx.get(tokens, self.unk)

    def to_tokens(self, indices):
        """Token of an id, or list of tokens of a list of ids.

        IndexError for an id that is not in the vocabulary.
        """
        if hasattr(indices, '__len__'):
            return [self.to_tokens(i) for i in indices]
        if not 0 <= indices < len(self):
            raise IndexError(f'token id {indices} is not in a vocabulary of '
                             f'{len(self)}')
        return self.idx_to_token[int(indices)]

    def encode(self, text):
        """Ids of a text, one per token that `text` yields."""
        return self[list(text)]

    def decode(self, ids):
        """The text of a list of ids."""
        return ''.join(self.to_tokens(list(ids)))


def visible_bytes():
    """One visible character per byte, as byte-level BPE files write them.

    Bytes that print stand for themselves, the others for the characters
    from 256 on. Source: GPT-2's vocabulary file.
    """
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    return ({chr(b): b for b in visible}
            | {chr(256 + i): b for i, b in enumerate(hidden)})


class BPETokenizer:
    """Byte-pair encoding: ids 0..255 are the bytes, then merges as learnt.

    The `tokenizers` library learns the merges, `tiktoken` applies them. A
    text with too few pairs gives fewer than vocab_size tokens; `len` tells.
    """

    def __init__(self, vocab_size=1024, pattern=GPT2_PATTERN):
        if vocab_size < 256:
            raise ValueError(f'vocab_size={vocab_size}: the 256 bytes come '
                             'first')
        self.vocab_size, self.pattern = vocab_size, pattern
        self._use({bytes([b]): b for b in range(256)})

    def _use(self, ranks):
        self.encoding = tiktoken.Encoding(
            'bpe', pat_str=self.pattern, mergeable_ranks=ranks,
            special_tokens={})

    def train(self, text):
        """Learn merges from a text; returns self."""
        from tokenizers import Regex, Tokenizer, models, trainers
        from tokenizers import pre_tokenizers as pre
        learner = Tokenizer(models.BPE())
        learner.pre_tokenizer = pre.Sequence([
            pre.Split(Regex(self.pattern), 'isolated'),
            pre.ByteLevel(add_prefix_space=False, use_regex=False)])
        learner.train_from_iterator([text], trainers.BpeTrainer(
            vocab_size=self.vocab_size, show_progress=False,
            initial_alphabet=pre.ByteLevel.alphabet()))
        byte = visible_bytes()
        ranks = {bytes([b]): b for b in range(256)}
        for pair in json.loads(learner.to_str())['model']['merges']:
            ranks[bytes(byte[c] for c in ''.join(pair))] = len(ranks)
        self._use(ranks)
        return self

    def __len__(self):
        return self.encoding.n_vocab

    def encode(self, text):
        """List of ids of a text."""
        return self.encoding.encode_ordinary(text)

    def decode(self, ids):
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        return self.encoding.decode([int(i) for i in ids])

    def to_tokens(self, indices):
        """Token of an id, or list of tokens of a list of ids."""
        if hasattr(indices, '__len__'):
            return [self.decode([i]) for i in indices]
        return self.decode([indices])


class Windows:
    """Batches (X, Y) of windows over a corpus, Y one token ahead of X.

    starts: first token of each window; X, Y: (B, num_steps), what to_array
    makes of int32 ids. With a seed the windows are shuffled, anew on each
    pass, and a last batch that is not full is left out, so that every batch
    has the same shape. A batch is gathered when it is asked for: nothing is
    copied ahead.
    """

    def __init__(self, corpus, starts, num_steps, batch_size, to_array,
                 seed=None):
        self.windows = np.lib.stride_tricks.sliding_window_view(
            corpus, num_steps + 1)
        self.starts, self.batch_size, self.seed = starts, batch_size, seed
        self.to_array, self.passes = to_array, 0

    def __len__(self):
        full, rest = divmod(len(self.starts), self.batch_size)
        return full + (self.seed is None and rest > 0)

    def __iter__(self):
        starts = np.asarray(self.starts)
        if self.seed is not None:
            starts = np.random.default_rng(
                (self.seed, self.passes)).permutation(starts)
            self.passes += 1
        for i in range(len(self)):
            batch = starts[i * self.batch_size:(i + 1) * self.batch_size]
            window = self.windows[batch]
            yield self.to_array(window[:, :-1]), self.to_array(window[:, 1:])


class TimeMachineText:
    """The text of this run in batches (X, Y) of (batch_size, num_steps) ids.

    Y is X one token later. tokenization: 'char' (letters a to z, everything
    else one space) or 'bpe' (a `BPETokenizer` of vocab_size, learnt on the
    text). Training windows start at tokens 0 .. num_train - 1, validation
    windows at the next num_val. ValueError if the text is too short for
    that. A backend says in `to_array` what its batches are made of.
    """

    def __init__(self, batch_size, num_steps, num_train=10000, num_val=5000,
                 tokenization='bpe', vocab_size=1024, seed=0):
        if tokenization not in ('char', 'bpe'):
            raise ValueError(f"tokenization={tokenization!r}: expected "
                             "'char' or 'bpe'")
        check_sizes(batch_size=batch_size, num_steps=num_steps,
                    num_train=num_train, num_val=num_val)
        if batch_size > num_train:
            raise ValueError(f'batch_size={batch_size}: there are only '
                             f'num_train={num_train} windows')
        self.batch_size, self.num_steps = batch_size, num_steps
        self.num_train, self.num_val = num_train, num_val
        self.tokenization, self.vocab_size = tokenization, vocab_size
        self.seed = seed
        self.raw_text = read_text()
        self.corpus, self.vocab = self.build(self.raw_text)
        need = num_train + num_val + num_steps
        if need > len(self.corpus):
            raise ValueError(
                f'{num_train} + {num_val} windows of {num_steps} need {need} '
                f'tokens, the text has {len(self.corpus)}')

    def preprocess(self, raw_text):
        """What is tokenized: for 'char' lower-case letters and blanks."""
        if self.tokenization == 'bpe':
            return raw_text
        return re.sub('[^A-Za-z]+', ' ', raw_text).lower()

    def build(self, raw_text, vocab=None):
        """(corpus ids as an int32 array, vocab); learns a vocab if None."""
        text = self.preprocess(raw_text)
        if vocab is None:
            vocab = (Vocab(text) if self.tokenization == 'char'
                     else BPETokenizer(self.vocab_size).train(text))
        return np.array(vocab.encode(text), dtype=np.int32), vocab

    @staticmethod
    def to_array(ids):
        """A NumPy array of ids as what the model takes."""
        return ids

    def train_dataloader(self):
        """Training batches, shuffled anew on each pass."""
        return Windows(self.corpus, range(self.num_train), self.num_steps,
                       self.batch_size, self.to_array, self.seed)

    def val_dataloader(self):
        """Validation batches in the order of the text."""
        starts = range(self.num_train, self.num_train + self.num_val)
        return Windows(self.corpus, starts, self.num_steps, self.batch_size,
                       self.to_array)
