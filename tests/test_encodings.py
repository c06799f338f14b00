"""Tokenizers of pretrained models, against the library that made them."""

import json
import pickle
import re

import pytest
import tiktoken
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from tokenizers import pre_tokenizers as pre

from d2l_ext import encodings, runs
from d2l_ext.text import GPT2_PATTERN, read_text, visible_bytes

HARD = [
    '', '7', '2026', '1 22 333', ' 7', '  7', '   77  7', 'a  7b', 'x7 y 8z',
    'a\t\t7', '\n\n7\n 7 \n', ' \t \n 7 \t', 'trailing   ', '   leading',
    'a   b', 'a\n\n\nb', '\r\na\r\n\r\n7\r\n', "we'll we'LL I'm I'M 'tis d's",
    "'7 's7 '' 'st", 'café naïve ÅNGSTRÖM', 'e\u0301 n\u0303o',
    'a\u0301 7\u0301 \u0301', '👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽', '日本語、中文。한국어',
    '١٢٣ ٤', '  ١٢', 'x² ½ Ⅷ ¾7 ①', '  ²  ½', 'def f(x):\n    return x[0]**2',
    '\tif (a==1) { b+=2; }', 'no\xa0break\xa07', '\xa0\xa07', ' \xa0 7',
    'em\u2003quad\u20037', '\u2028 7\u2029', '\u30007', '\x857', '\u200b 7',
    'Mr. Smith -- 3.14, $1,000.50!', '...7...', '_ __ _7_', '<|im_start|>']


class Case:
    """An encoding, and {token: id}, merges and splitting of the reference."""

    def __init__(self, encoding, ids, merges, split):
        self.encoding, self.ids = encoding, ids
        self.reference = Tokenizer(models.BPE(vocab=ids, merges=[
            tuple(merge.split(' ')) for merge in merges]))
        self.reference.pre_tokenizer = split

    def check(self, text):
        """The ids of the reference, and the text again."""
        found = self.encoding.encode_ordinary(text)
        expected = self.reference.encode(text).ids
        if found != expected:
            at = next((i for i, (a, b) in enumerate(
                zip(found, expected, strict=False)) if a != b),
                min(len(found), len(expected)))
            raise AssertionError(
                f'after {self.encoding.decode(found[:at])[-30:]!r}: '
                f'{found[at:at + 4]}, expected {expected[at:at + 4]}')
        assert self.encoding.decode(found) == text


@pytest.fixture(scope='module')
def gpt2_files(fetched):
    return fetched('gpt2-vocab'), fetched('gpt2-merges')


@pytest.fixture(scope='module')
def cases(gpt2_files, smollm2_gguf):
    vocab, merges = gpt2_files
    with open(vocab, encoding='utf-8') as f:
        ids = json.load(f)
    with open(merges, encoding='utf-8') as f:
        gpt2 = Case(encodings.gpt2_encoding(vocab, merges), ids,
                    f.read().splitlines()[1:],
                    pre.ByteLevel(add_prefix_space=False))
    tokens, kinds, merges = (
        smollm2_gguf.reader.get_field(f'tokenizer.ggml.{key}').contents()
        for key in ('tokens', 'token_type', 'merges'))
    smollm2 = Case(smollm2_gguf.encoding,
                   {token: i for i, token in enumerate(tokens)}, merges,
                   pre.Sequence([pre.Digits(individual_digits=True),
                                 pre.ByteLevel(add_prefix_space=False)]))
    return {'gpt2': gpt2, 'smollm2': smollm2}


@pytest.fixture(params=['gpt2', 'smollm2'])
def case(request, cases):
    return cases[request.param]


@pytest.mark.parametrize('text', HARD, ids=ascii)
def test_ids_are_the_published_ones_on_hard_texts(case, text):
    """Digits, blanks of all kinds, contractions, marks, emoji, code."""
    case.check(text)


def test_ids_are_the_published_ones_on_all_pairs_of_hard_texts(case):
    """What ends one text decides how the next one begins."""
    for text in HARD:
        case.check(''.join(text + other for other in HARD))


def test_ids_are_the_published_ones_on_the_runs_text(case, monkeypatch):
    monkeypatch.setattr(runs, 'latest', None)
    text = read_text()
    assert len(text) > 100_000
    case.check(text)


# blanks, digits and apostrophes often, anything at times
CHARACTERS = st.one_of(
    st.sampled_from(' \t\n\r\xa0\u2003'), st.sampled_from('  0123456789'),
    st.sampled_from("'sStTdDmMlLvVrReE"), st.sampled_from('abyz. ,-_(é日'),
    st.sampled_from('²½Ⅷ١👍\u0301\u200d\u3000'),
    st.characters(exclude_categories=['Cs', 'Cn']))


@settings(max_examples=400, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(CHARACTERS, max_size=24).map(''.join))
def test_ids_are_the_published_ones_on_any_text(case, text):
    """Or the text is refused, if it has a byte that no token has."""
    lacking = case.encoding.lacking
    if lacking.isdisjoint(text.encode()):
        case.check(text)
    else:
        with pytest.raises(ValueError, match='no token for the character'):
            case.encoding.encode_ordinary(text)


def test_the_number_of_tokens_is_the_published_one(cases):
    sizes = {name: case.encoding.n_vocab for name, case in cases.items()}
    assert sizes == {'gpt2': 50257, 'smollm2': 49152}


def test_they_are_what_the_book_uses(case):
    assert isinstance(case.encoding, tiktoken.Encoding)


def test_special_tokens_are_encoded_where_they_are_allowed_only(case):
    """17 come first in SmolLM2, one last in GPT-2; else they are text."""
    encoding = case.encoding
    specials = sorted(encoding.special_tokens_set, key=case.ids.get)
    first = {'gpt2': 50256, 'smollm2': 0}[encoding.name]
    count = {'gpt2': 1, 'smollm2': 17}[encoding.name]
    expected = list(range(first, first + count))
    assert [case.ids[token] for token in specials] == expected
    assert encoding.eot_token in expected
    text = ''.join(specials)
    assert encoding.encode(text, allowed_special='all') == expected
    assert encoding.decode(expected) == text
    ordinary = encoding.encode_ordinary(text)
    assert encoding.encode(text, disallowed_special=()) == ordinary
    assert not set(ordinary) & set(expected)
    assert encoding.decode(ordinary) == text
    with pytest.raises(ValueError, match='disallowed special token'):
        encoding.encode(text)


@pytest.mark.parametrize('method', ['encode', 'encode_ordinary',
                                    'encode_to_numpy'])
@pytest.mark.parametrize('text, char, at', [
    ('ab\x04', r"'\\x04'", 2), ('\x13', r"'\\x13'", 0),
    ('7 日 \x04\x13', r"'\\x04'", 4)])
def test_a_character_without_a_token_is_named(cases, method, text, char, at):
    """tiktoken would panic, which no `except Exception` catches."""
    with pytest.raises(ValueError, match=rf'smollm2 has no token for the '
                                         rf'character {char} \(at {at}\)'):
        getattr(cases['smollm2'].encoding, method)(text)
    assert cases['gpt2'].encoding.lacking == set()


def test_a_character_of_several_bytes_is_named_as_a_whole(smollm2_gguf):
    encoding = smollm2_gguf.encoding
    char = next(c for c in map(chr, range(0x80, 0x110000))
                if not 0xd800 <= ord(c) < 0xe000
                and not encoding.lacking.isdisjoint(c.encode()))
    with pytest.raises(ValueError, match=re.escape(f'character {char!r}')):
        encoding.encode('é' + char)


def test_pickled_they_give_the_same_ids(case):
    copy = pickle.loads(pickle.dumps(case.encoding))
    assert type(copy) is type(case.encoding)
    assert copy.n_vocab == case.encoding.n_vocab
    assert copy.special_tokens_set == case.encoding.special_tokens_set
    assert copy.lacking == case.encoding.lacking
    for text in HARD:
        assert copy.encode_ordinary(text) == (
            case.encoding.encode_ordinary(text))


# A vocabulary of our own: 256 bytes, four merges, one special token

BYTES = list(visible_bytes())
MERGES = ['a b', 'ab c', 'd e', 'abc de']
IDS = {token: i for i, token in enumerate(
    [*BYTES, 'ab', 'abc', 'de', 'abcde', '<s>'])}


def build(ids=IDS, merges=MERGES, special=('<s>',)):
    return encodings.build('own', GPT2_PATTERN, ids, merges, special)


def test_merges_apply_in_their_order():
    encoding = build()
    assert encoding.encode_ordinary('abcde') == [IDS['abcde']]
    assert encoding.encode_ordinary('abde<') == [
        IDS['ab'], IDS['de'], IDS['<']]
    assert encoding.encode('<s>', allowed_special='all') == [IDS['<s>']]


@pytest.mark.parametrize('merges', [
    ['ab c', 'a b', 'd e', 'abc de'], MERGES[::-1], [*MERGES, 'a b'],
    [*MERGES, 'y z']], ids=['swapped', 'reversed', 'twice', 'unknown'])
def test_merges_out_of_the_order_of_ids_are_refused(merges):
    """tiktoken merges by id, so another order would give other ids."""
    with pytest.raises(ValueError, match='own: the merges are not in the '
                                         'order of the vocabulary'):
        build(merges=merges)
