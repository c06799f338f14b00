"""Arguments of the generators, checked once for both backends.

All of it happens before any work, so a refused call leaves caches as they
were. Past the end JAX would clamp a write and PyTorch drop it, both without
a word, hence `check_room`.
"""

from numbers import Integral


def check_choice(name, value, choices):
    if value not in choices:
        raise ValueError(f'{name}={value!r}: expected one of '
                         f'{", ".join(map(repr, choices))}')


def check_heads(num_hiddens, num_heads):
    if num_hiddens % num_heads:
        raise ValueError(f'num_hiddens={num_hiddens} is no multiple of '
                         f'num_heads={num_heads}')


def check_room(start, new, max_len):
    """ValueError unless positions start .. start + new - 1 exist."""
    if start < 0:
        raise ValueError(f'position {start} is before the first one, 0')
    if start + new > max_len:
        raise ValueError(f'{start} tokens + {new} new > {max_len}, '
                         'the most there is room for')


def check_prompt(prefix, num_tokens, max_len, vocab_size):
    """Refuse what cannot be continued; returns the prefix as a list of int.

    ValueError: no token to start from, an id outside the vocabulary, or
    prefix and new tokens together longer than max_len.
    """
    if not all(isinstance(i, Integral) or getattr(i, 'shape', 1) == ()
               for i in prefix):
        raise ValueError('prefix: expected a flat list of token ids, found '
                         f'{type(prefix).__name__} of '
                         f'{type(prefix[0]).__name__}')
    prefix = [int(i) for i in prefix]
    if not prefix:
        raise ValueError('prefix is empty: generation starts from at least '
                         'one token')
    if bad := [i for i in prefix if not 0 <= i < vocab_size]:
        raise ValueError(f'token id {bad[0]} is not in a vocabulary of '
                         f'{vocab_size}')
    if num_tokens < 0:
        raise ValueError(f'num_tokens={num_tokens}: expected 0 or more')
    check_room(len(prefix), num_tokens, max_len)
    return prefix


def check_sampling(temperature, top_k):
    """ValueError for a temperature below 0 or a top_k below 1."""
    if not 0 <= temperature < float('inf'):
        raise ValueError(f'temperature={temperature}: expected 0 (greedy) '
                         'or more')
    if top_k is not None and top_k < 1:
        raise ValueError(f'top_k={top_k}: expected at least 1, or None for '
                         'all tokens')


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
