"""The two tables: each number follows from others that are published."""

import re
from dataclasses import replace

import numpy as np
import pytest

from d2l_ext.catalogue import CARDS, MODELS

# vocabulary, width, inner width of the feed-forward part, head tied or not
WIDTHS = {'GPT-2': (50_257, 768, 3072, True),
          'Llama-2-70B': (32_000, 8192, 28_672, False),
          'Llama-3-8B': (128_256, 4096, 14_336, False),
          'Mistral-7B': (32_000, 4096, 14_336, False),
          'SmolLM2-135M': (49_152, 576, 1536, True)}
# fp32 lanes, clock in GHz, width of the memory bus in bits, Gbit/s per pin
BUILDS = {'RTX 4090': (16_384, 2.52, 384, 21), 'T4': (2560, 1.59, 256, 10),
          'RTX 3060 12GB': (3584, 1.78, 192, 15),
          'A100 80GB SXM': (6912, 1.41, 5120, 3.186),
          'H100 80GB SXM': (16_896, 1.98, 5120, 5.23),
          'H200 141GB': (16_896, 1.98, 6144, 6.25),
          'Apple M2': (1280, 1.398, 128, 6.4)}


def dense_count(model, vocab, width, inner, tied):
    """Parameters of a decoder, GPT-2's or the llama kind."""
    queries = model.num_heads * model.head_dim
    pair = 2 * model.num_kv_heads * model.head_dim
    embeddings = (1 if tied else 2) * vocab * width
    attention = width * (queries + pair) + queries * width
    if model.name == 'GPT-2':  # biases, scale and shift, learned positions
        attention += queries + pair + width
        ffn = 2 * width * inner + inner + width
        norm, positions = 2 * width, model.max_context * width
    else:
        ffn, norm, positions = 3 * width * inner, width, 0
    block = attention + ffn + 2 * norm
    return embeddings + positions + model.num_blks * block + norm


@pytest.mark.parametrize('name', WIDTHS)
def test_parameters_follow_from_the_widths(name):
    vocab, width, inner, tied = WIDTHS[name]
    assert MODELS[name].num_params == dense_count(
        MODELS[name], vocab, width, inner, tied)
    assert MODELS[name].num_heads * MODELS[name].head_dim == width


def test_deepseeks_parameters_are_rounded_to_a_billion():
    """Latent attention with queries compressed too; 160 + 2 experts in all
    blocks but the first."""
    model = MODELS['DeepSeek-V2']
    width, vocab, query_rank = 5120, 102_400, 1536
    H, hd, r, rot = (model.num_heads, model.head_dim, model.latent_dim,
                     model.rotary_dim)
    attention = (width * query_rank + query_rank * H * (hd + rot)
                 + width * (r + rot) + r * H * 2 * hd + H * hd * width
                 + query_rank + r)
    experts = 162 * 3 * width * 1536 + 160 * width
    count = (model.num_blks * (attention + 2 * width) + 59 * experts
             + 3 * width * 12_288 + 2 * vocab * width + width)
    assert round(count, -9) == model.num_params
    assert 'rounded' in model.source


def test_cached_elements_per_token_and_block():
    """What each kind of sharing leaves of MHA's 2 * H * hd."""
    found = {name: model.bytes_per_token(1) // model.num_blks
             for name, model in MODELS.items()}
    assert found == {'GPT-2': 1536, 'Llama-2-70B': 2048, 'Llama-3-8B': 2048,
                     'Mistral-7B': 2048, 'DeepSeek-V2': 576,
                     'SmolLM2-135M': 384}


def test_published_bytes_per_token():
    assert MODELS['Llama-2-70B'].bytes_per_token() == 320 * 2**10
    assert MODELS['Llama-3-8B'].bytes_per_token(itemsize=2) == 128 * 2**10
    assert MODELS['GPT-2'].bytes_per_token(4) == 72 * 2**10


def test_a_models_window_and_latent_apply():
    mistral, deepseek = MODELS['Mistral-7B'], MODELS['DeepSeek-V2']
    assert mistral.cache_bytes(4096, batch=3) == 3 * 512 * 2**20
    assert mistral.cache_bytes(32_768) == mistral.cache_bytes(4096)
    assert mistral.cache_bytes(32_768, sinks=4) == mistral.cache_bytes(
        4096) // 1024 * 1025
    assert replace(mistral, window=None).cache_bytes(32_768) == 4 * 2**30
    assert deepseek.cache_bytes(7, 3, 2) == 60 * (512 + 64) * 7 * 3 * 2
    assert replace(deepseek, latent_dim=None).cache_bytes(7, 3, 2) == (
        2 * 60 * 128 * 128 * 7 * 3 * 2)


@pytest.mark.parametrize('itemsize', [1, 2, 4])
def test_break_even_is_where_the_cache_reaches_the_weights(itemsize):
    for model in MODELS.values():
        n = model.break_even(itemsize)
        if model.window:
            assert n is None
            assert model.cache_bytes(10**9) < model.weight_bytes()
        else:
            assert model.cache_bytes(n - 1, itemsize=itemsize) < (
                model.weight_bytes(itemsize))
            assert model.cache_bytes(n, itemsize=itemsize) >= (
                model.weight_bytes(itemsize))


def test_break_even_of_a_window_that_holds_enough():
    """4096 tokens are kept: exactly, one short, one to spare."""
    mistral = MODELS['Mistral-7B']
    for spare, n in ((0, 4096), (-1, 4096), (1, None)):
        model = replace(mistral, num_params=4096 * 65_536 + spare)
        assert model.break_even() == n


def test_weights_in_other_bytes_than_the_cache():
    model = MODELS['Llama-3-8B']
    assert model.break_even() == 122_533
    assert model.break_even(4, weight_itemsize=1) == 30_634
    assert model.break_even(weight_itemsize=1) == 61_267
    assert model.weight_bytes() == model.weight_bytes(1) * 2


def test_bad_counts_are_named():
    model = MODELS['GPT-2']
    for call, message in ((lambda: model.cache_bytes(0), 'n=0'),
                          (lambda: model.cache_bytes(7, 1.5), 'batch=1.5'),
                          (lambda: model.weight_bytes(0), 'itemsize=0'),
                          (lambda: model.break_even(weight_itemsize=0),
                           'itemsize=0'),
                          (lambda: model.cache_bytes(7, sinks=2), 'sinks=2')):
        with pytest.raises(ValueError, match=message):
            call()
    assert model.cache_bytes(np.int32(10**9)) == 12 * 3072 * 10**9


@pytest.mark.parametrize('name', BUILDS)
def test_a_cards_peaks_follow_from_its_build(name):
    """Two FLOPs per lane and cycle; bits on the bus over eight."""
    lanes, clock, bits, rate = BUILDS[name]
    assert CARDS[name].flop_rate == pytest.approx(2e9 * lanes * clock, 0.01)
    assert CARDS[name].bandwidth == pytest.approx(bits / 8 * rate * 1e9, 0.03)
    size = re.search(r'(\d+)GB', name)
    assert CARDS[name].memory % 2**30 == 0
    assert not size or CARDS[name].memory == int(size[1]) * 2**30


def test_every_row_has_its_name_and_a_dated_source():
    assert BUILDS.keys() == CARDS.keys()
    assert MODELS.keys() - WIDTHS.keys() == {'DeepSeek-V2'}
    for table in (MODELS, CARDS):
        for name, row in table.items():
            assert row.name == name
            assert re.search(r'\b20[012]\d\b', row.source), row.source


def test_heads_contexts_and_memories_as_published():
    assert [model.num_heads for model in MODELS.values()] == [
        12, 64, 32, 32, 128, 9]
    assert {name: model.max_context for name, model in MODELS.items()} == {
        'GPT-2': 1024, 'Llama-2-70B': 4096, 'Llama-3-8B': 8192,
        'Mistral-7B': 32_768, 'DeepSeek-V2': 131_072, 'SmolLM2-135M': 8192}
    assert [card.memory // 2**30 for card in CARDS.values()] == [
        24, 16, 12, 80, 80, 141, 24]


def test_both_backends_offer_the_tables(backend):
    assert backend.d2l.MODELS is MODELS and backend.d2l.CARDS is CARDS
