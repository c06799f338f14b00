"""Arguments of generators and formulas, checked once for both backends.

All of it happens before any work, so a refused call leaves caches as they
were. Past the end JAX would clamp a write and PyTorch drop it, both without
a word, hence `check_room`.
"""

import math
import operator
from numbers import Integral, Real

COLDEST = 1e-6  # below, logits over temperature overflow in fp32


def check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f'{name}={value!r}: expected one of '
                         f'{", ".join(map(repr, choices))}')


def whole(name, value, least):
    """The value as an int; ValueError unless whole and at least `least`."""
    if (isinstance(value, bool) or not isinstance(value, Integral)
            or value < least):
        raise ValueError(f'{name}={value!r}: expected a whole number of '
                         f'at least {least}')
    return int(value)  # a product of NumPy's would wrap around


def is_finite(value):
    """Whether a number is finite as a float: 10**400 is not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_sizes(**sizes):
    """ValueError unless each size is a whole number of at least 1.

    Returns the sizes as a list of int.
    """
    return [whole(name, value, 1) for name, value in sizes.items()]


def check_counts(**counts):
    """ValueError unless each count is whole, 0 or more; a list of int."""
    return [whole(name, value, 0) for name, value in counts.items()]


def check_positive(**amounts):
    """ValueError unless each is finite and above 0; a list of float."""
    for name, value in amounts.items():
        if (isinstance(value, bool) or not isinstance(value, Real)
                or not is_finite(value) or value <= 0):
            raise ValueError(f'{name}={value!r}: expected a finite number '
                             'above 0')
    return list(map(float, amounts.values()))


def check_heads(num_hiddens, num_heads, rope=False):
    check_sizes(num_hiddens=num_hiddens, num_heads=num_heads)
    if num_hiddens % num_heads:
        raise ValueError(f'num_hiddens={num_hiddens} is no multiple of '
                         f'num_heads={num_heads}')
    if rope and num_hiddens // num_heads % 2:
        raise ValueError('rope rotates pairs, but the head width is '
                         f'{num_hiddens // num_heads}')


def check_kv_heads(num_hiddens, num_heads, num_kv_heads, rope=False):
    check_heads(num_hiddens, num_heads, rope)
    check_sizes(num_kv_heads=num_kv_heads)
    if num_heads % num_kv_heads:
        raise ValueError(f'num_heads={num_heads} is no multiple of '
                         f'num_kv_heads={num_kv_heads}')


def check_dropout(dropout):
    if not 0 <= dropout < 1:
        raise ValueError(f'dropout={dropout}: expected 0 or more, below 1')


def check_same(what, cached, expected):
    """ValueError unless the cache has as many of something as the call."""
    if cached != expected:
        raise ValueError(f'{what}: the cache is for {cached}, the call for '
                         f'{expected}')


def check_room(start, new, max_len):
    """ValueError unless positions start .. start + new - 1 exist."""
    if start < 0:
        raise ValueError(f'position {start} is before the first one, 0')
    if start + new > max_len:
        raise ValueError(f'{start} tokens + {new} new > {max_len}, '
                         'the most there is room for')
    if new < 1:
        raise ValueError('no new tokens: a pass takes at least one')


def check_prompt(prefix, num_tokens, max_len, vocab_size):
    """Refuse what cannot be continued; returns the prefix as a list of int.

    ValueError: no token to start from, something else than whole numbers,
    an id outside the vocabulary, or prefix and new tokens together longer
    than max_len.
    """
    try:
        prefix = [operator.index(i) for i in prefix]
    except TypeError as error:
        raise ValueError('prefix: expected a flat list of token ids '
                         f'({error})') from error
    if not prefix:
        raise ValueError('prefix is empty: generation starts from at least '
                         'one token')
    if bad := [i for i in prefix if not 0 <= i < vocab_size]:
        raise ValueError(f'token id {bad[0]} is not in a vocabulary of '
                         f'{vocab_size}')
    if not isinstance(num_tokens, Integral) or num_tokens < 0:
        raise ValueError(f'num_tokens={num_tokens!r}: expected a whole '
                         'number, 0 or more')
    if num_tokens or len(prefix) > max_len:
        check_room(len(prefix), num_tokens, max_len)
    return prefix


def check_sampling(temperature, top_k):
    """ValueError for a temperature below 0 or a top_k below 1."""
    if (not isinstance(temperature, Real) or temperature != 0
            and not COLDEST <= temperature < float('inf')):
        raise ValueError(f'temperature={temperature!r}: expected 0 (greedy) '
                         f'or a number from {COLDEST} on')
    if top_k is not None and (not isinstance(top_k, Integral) or top_k < 1):
        raise ValueError(f'top_k={top_k!r}: expected at least 1, a whole '
                         'number, or None for all tokens')


def check_weights(expected, found):
    """ValueError unless `found` has the names and shapes of `expected`.

    expected: {name: shape}; found: {name: array}.
    """
    for why, names in (('missing', expected.keys() - found.keys()),
                       ('not in the model', found.keys() - expected.keys())):
        if names:
            raise ValueError(f'weights {why}: {", ".join(sorted(names)[:5])}'
                             + (' ...' if len(names) > 5 else ''))
    for name, shape in expected.items():
        if tuple(found[name].shape) != shape:
            raise ValueError(f'{name}: shape {tuple(found[name].shape)}, '
                             f'the model has {shape}')
        kind = str(found[name].dtype)
        if 'float' not in kind:
            raise ValueError(f'{name}: type {kind}, expected a float')
