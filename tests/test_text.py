"""Vocabularies, byte pairs and windows: the same in both backends."""

import itertools
import re
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2l_ext.text import BPETokenizer, TimeMachineText, Vocab, visible_bytes

TEXT = 'low lower lowest newer newest wide wider, low low 12 345! ' * 9


def test_vocab_orders_by_falling_frequency():
    """`<unk>` is 0; ties stand in alphabetical order."""
    vocab = Vocab('abracadabra')
    assert vocab.idx_to_token == ['<unk>', 'a', 'b', 'r', 'c', 'd']
    assert len(vocab) == 6 and vocab.unk == 0
    assert vocab['a'] == 1 and vocab[['r', 'x']] == [3, 0]
    assert vocab.to_tokens([1, 0]) == ['a', '<unk>']
    assert vocab.to_tokens(2) == vocab.to_tokens(np.int64(2)) == 'b'
    for wrong in (-1, len(vocab)):
        with pytest.raises(IndexError, match=f'token id {wrong} is not in'):
            vocab.to_tokens([1, wrong])
    assert vocab.decode(vocab.encode('cab')) == 'cab'
    assert Vocab('cabcab').idx_to_token == ['<unk>', 'a', 'b', 'c']


def test_vocab_leaves_rare_tokens_out_and_reserved_ones_in():
    vocab = Vocab('aaabbc', min_freq=2, reserved_tokens=['<pad>'])
    assert vocab.idx_to_token == ['<unk>', '<pad>', 'a', 'b']


def test_bpe_learns_the_most_frequent_pair_first():
    """Ids 0 to 255 are bytes; 'lo', then 'low', come first here."""
    bpe = BPETokenizer(vocab_size=270).train(TEXT)
    assert len(bpe) == 270
    assert bpe.encode('z') == [ord('z')]
    tokens = bpe.to_tokens(range(256, 270))
    assert len(set(tokens)) == 14 and tokens[0] in ('lo', 'ow', 'we')
    assert any('low' in t for t in tokens)
    assert len(bpe.encode(TEXT)) < 0.6 * len(TEXT)


def test_bpe_applies_merges_in_the_order_they_were_learnt():
    """tiktoken's ids are those of the library that learnt the merges."""
    from tokenizers import Regex, Tokenizer, models, trainers
    from tokenizers import pre_tokenizers as pre
    bpe = BPETokenizer(300).train(TEXT)
    other = Tokenizer(models.BPE())
    other.pre_tokenizer = pre.Sequence([
        pre.Split(Regex(bpe.pattern), 'isolated'),
        pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    other.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=300, show_progress=False,
        initial_alphabet=pre.ByteLevel.alphabet()))
    byte = visible_bytes()
    for text in (TEXT, 'slower  lowwest\n\n wid3r', 'ünïcødé 🙂 low'):
        pieces = [bytes(byte[c] for c in token)
                  for token in other.encode(text).tokens]
        assert pieces == bpe.encoding.decode_tokens_bytes(bpe.encode(text))


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_bpe_round_trip_is_exact(text):
    """Any text comes back: what was not learnt is bytes."""
    bpe = TRAINED
    assert bpe.decode(bpe.encode(text)) == text


TRAINED = BPETokenizer(290).train(TEXT)


def test_bpe_splits_as_gpt2_does():
    """Contractions, letters, digits, the rest, and runs of blanks."""
    import regex
    text = "we'll see   12 cats' e.g. I'd\n\n  go"
    parts = regex.findall(BPETokenizer().pattern, text)
    assert parts == ['we', "'ll", ' see', '  ', ' 12', ' cats', "'", ' e',
                     '.', 'g', '.', ' I', "'d", '\n\n ', ' go']


def test_bpe_needs_room_for_the_bytes():
    with pytest.raises(ValueError, match='vocab_size=255'):
        BPETokenizer(255)


def test_char_text_is_letters_and_single_spaces(own_text):
    data = TimeMachineText(4, 8, 100, 20, tokenization='char')
    text = data.vocab.decode(data.corpus)
    assert text == re.sub('[^a-z]+', ' ', own_text.lower())
    assert data.corpus.dtype == np.int32


def test_windows_are_where_the_book_puts_them(backend, own_text):
    """Training starts 0 .. num_train - 1, validation the next num_val."""
    data = backend.d2l.TimeMachine(4, 8, 32, 10, tokenization='char')
    starts = []
    for X, Y in data.train_dataloader():
        X, Y = np.asarray(X), np.asarray(Y)
        assert X.shape == Y.shape == (4, 8)
        np.testing.assert_array_equal(X[:, 1:], Y[:, :-1])
        starts += [tuple(x) for x in X]
    where = [tuple(data.corpus[i:i + 8]) for i in range(32)]
    assert sorted(starts) == sorted(where) and starts != where
    val = np.concatenate([np.asarray(X) for X, _ in data.val_dataloader()])
    expected = [data.corpus[i:i + 8] for i in range(32, 42)]
    np.testing.assert_array_equal(val, expected)
    assert len(data.train_dataloader()) == 8
    assert len(data.val_dataloader()) == 3  # the last one holds two


def passes_over(data, num_passes=3):
    """Training batches (passes, batches, X or Y, B, T) as NumPy."""
    loader = data.train_dataloader()
    return np.array([[[np.asarray(X), np.asarray(Y)] for X, Y in loader]
                     for _ in range(num_passes)])


@pytest.mark.parametrize('tokenization', ['char', 'bpe'])
def test_both_backends_see_the_same_batches(own_text, tokenization):
    """Same seed, same order in every pass; each pass and seed its own."""
    from backends import BACKENDS

    def passes(backend, seed=0):
        return passes_over(backend.d2l.TimeMachine(
            5, 6, 40, 5, tokenization, vocab_size=280, seed=seed))

    torch, jax = (passes(backend) for backend in BACKENDS.values())
    np.testing.assert_array_equal(torch, jax)
    other = passes(BACKENDS['torch'], seed=1)
    for one, another in itertools.combinations([*torch, *other], 2):
        assert not np.array_equal(one, another)


def test_a_new_loader_starts_with_the_first_pass(own_text):
    """So two trainings on one `data` see the same batches."""
    data = TimeMachineText(4, 8, 100, 20, tokenization='char')
    np.testing.assert_array_equal(passes_over(data, 2), passes_over(data, 2))


def test_windows_are_not_copied_ahead(backend, own_text):
    """They are views of the corpus; a pass never holds all of them."""
    data = backend.d2l.TimeMachine(4, 64, 3000, 20, tokenization='char')
    next(iter(data.train_dataloader()))  # a first conversion loads modules
    tracemalloc.start()
    try:
        loader = data.train_dataloader()
        for _ in loader:
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.shares_memory(loader.windows, data.corpus)
    copies = 3000 * 65 * data.corpus.itemsize
    assert peak < copies / 5, f'{peak} bytes, all windows are {copies}'


def test_a_vocabulary_serves_another_text(own_text):
    """build(text, vocab) uses the ids that are there."""
    data = TimeMachineText(4, 8, 100, 20, tokenization='char')
    ids, vocab = data.build('The Cat: 99', data.vocab)
    assert vocab is data.vocab and vocab.decode(ids) == 'the cat '


@pytest.mark.parametrize('wrong, message', [
    (dict(tokenization='word'), "tokenization='word'"),
    (dict(num_train=3), 'batch_size=4: there are only num_train=3'),
    (dict(num_train=-5), 'num_train=-5: expected a whole number'),
    (dict(num_val=0), 'num_val=0'), (dict(num_val=1.5), 'num_val=1.5'),
    (dict(num_train=10**6), '1000000 . 20 windows of 8 need 1000028 tokens')])
def test_what_the_text_cannot_give_is_refused(own_text, wrong, message):
    sizes = {'num_train': 100, 'num_val': 20, 'tokenization': 'char'}
    with pytest.raises(ValueError, match=message):
        TimeMachineText(4, 8, **{**sizes, **wrong})
