"""Cached steps of one attention layer, in NumPy, right and wrong.

A student's step is run by `try_step` of a backend on a StepCase, with the
same weights as the reference here. This one is written apart from both
backends and from the solutions: float64, one row and one head at a time.

B batch, T tokens, H query heads, G key-value heads, hd head width, D model
width (H * hd), S tokens cached so far
"""

from dataclasses import dataclass

import numpy as np

from .answers import NotYet, array

TOLERANCE = 1e-3  # of outputs of order 1, in fp32


@dataclass(frozen=True)
class StepCase:
    """Sizes of a layer, and how many tokens come at once.

    G: None for GPT.CausalAttention, whose heads all have keys of their own.
    """

    B: int
    H: int
    G: int | None
    hd: int
    chunks: tuple
    seed: int = 0

    def __repr__(self):
        heads = f'H={self.H}' + (f', G={self.G}' if self.G else '')
        return (f'B={self.B}, {heads}, hd={self.hd}, chunks of '
                + ' + '.join(map(str, self.chunks)) + ' tokens')

    @property
    def D(self):
        return self.H * self.hd

    @property
    def kv_heads(self):
        return self.G or self.H

    def inputs(self):
        """X (B, T, D), fp32."""
        rng = np.random.default_rng(self.seed)
        return rng.standard_normal(
            (self.B, sum(self.chunks), self.D)).astype(np.float32)

    def weights(self):
        """{name: fp32 array (out, in)}, as the backends name them."""
        rng = np.random.default_rng(self.seed + 1)
        width = self.kv_heads * self.hd
        shapes = ({'W_qkv': 3 * self.D, 'W_o': self.D} if self.G is None else
                  {'W_q': self.D, 'W_k': width, 'W_v': width, 'W_o': self.D})
        return {f'{name}.weight': (rng.standard_normal((out, self.D))
                                   * self.D**-0.5).astype(np.float32)
                for name, out in shapes.items()}

    def starts(self):
        """For each token the position where its chunk begins."""
        ends = np.cumsum(self.chunks)
        return np.repeat(ends - self.chunks, self.chunks)


def rotated(x, position):
    """One row x (hd), its pairs turned as complex numbers."""
    angles = position * 10000.0 ** (-np.arange(0, len(x), 2) / len(x))
    turned = (x[0::2] + 1j * x[1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=-1).ravel()


def projected(case, x):
    """q (T, H, hd), k and v (T, G, hd) of one sequence x (T, D)."""
    w = {name: a.astype(np.float64) for name, a in case.weights().items()}
    if case.G is None:
        parts = np.split(x @ w['W_qkv.weight'].T, 3, axis=-1)
    else:
        parts = [x @ w[f'W_{name}.weight'].T for name in 'qkv']
    return [part.reshape(len(x), -1, case.hd) for part in parts]


def outputs(case, position=lambda i, start: i, query_position=None,
            reads=lambda h, case: h // (case.H // case.kv_heads), scale=None,
            sees=lambda i, j, start: j <= i):
    """Y (B, T, D) of a layer; each argument can be set wrong.

    position: of token i, whose chunk begins at start; query_position: None
    for the same; reads: the key-value head of query head h;
    scale: of the scores; sees: whether token i looks at token j.
    """
    query_position = query_position or position
    starts, rows = case.starts(), []
    ends = starts + np.repeat(case.chunks, case.chunks)
    W_o = case.weights()['W_o.weight'].astype(np.float64)
    for x in case.inputs().astype(np.float64):
        q, k, v = projected(case, x)
        k = np.stack([[rotated(head, position(i, starts[i])) for head in row]
                      for i, row in enumerate(k)])
        out = np.zeros((len(x), case.H, case.hd))
        for i in range(len(x)):
            keys = [j for j in range(ends[i]) if sees(i, j, starts[i])]
            for h in range(case.H):
                g = reads(h, case)
                score = k[keys, g] @ rotated(
                    q[i, h], query_position(i, starts[i]))
                score *= case.hd**-0.5 if scale is None else scale(case)
                weight = np.exp(score - score.max())
                out[i, h] = weight / weight.sum() @ v[keys, g]
        rows.append(out.reshape(len(x), -1) @ W_o.T)
    return np.stack(rows)


# what goes wrong, as arguments of `outputs`, and what is said of it
MISTAKES = {
    'offset': (
        dict(position=lambda i, start: i - start),
        'each chunk is rotated as if it began at position 0: where does it '
        'begin when tokens are cached already?'),
    'late': (
        dict(position=lambda i, start: i + (start > 0)),
        'after the first chunk each position is one too high: positions are '
        'counted from 0'),
    'no rotation': (
        dict(position=lambda i, start: 0),
        'nothing is rotated: the layer has rotary positions'),
    'keys only': (
        dict(query_position=lambda i, start: 0),
        'keys are rotated and queries are not; only the difference of the '
        'two means something'),
    'tiled': (
        dict(reads=lambda h, case: h % case.kv_heads),
        'the heads are in another order: query heads of a group stand side '
        'by side (0, 0, 0, 1, 1, 1), they are not dealt out in turn (0, 1, '
        '0, 1, 0, 1)'),
    'no scale': (
        dict(scale=lambda case: 1.0),
        'the scores are not scaled by the root of the head width'),
    'scale of D': (
        dict(scale=lambda case: case.D**-0.5),
        'the scores are scaled by the width of the model; it is that of a '
        'head'),
    'no mask': (
        dict(sees=lambda i, j, start: True),
        'tokens of a chunk see later ones of the same chunk: the mask is '
        'missing'),
    'mask from the start': (
        dict(sees=lambda i, j, start: j <= i - start),
        'the mask begins at the first key: the first new token then sees one '
        'key, whatever is cached. It has to be shifted by what is cached'),
    'new ones only': (
        dict(sees=lambda i, j, start: start <= j <= i),
        'new tokens see only the new ones: the cached keys and values are '
        'not read'),
    'without itself': (
        dict(sees=lambda i, j, start: j < max(i, 1)),
        'a token does not see itself: its own key and value belong to what '
        'it reads'),
}


# --- Checks ------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """What a step did: Y of all chunks, and the cache after each of them.

    ys: arrays (B, T, D); caches: pairs (k, v) of (B, S, G, hd), filled rows;
    made: sizes of the arrays that the last chunk made on its way.
    """

    ys: list
    caches: list
    made: set


def tried(found):
    """The form of what `try_step` returns: NotYet if shapes make no sense."""
    ys, caches, made = found
    for name, values in (('output', ys), *zip(
            ('k', 'v'), zip(*caches, strict=True), strict=True)):
        for value in values:
            if value is None:
                raise NotYet(f'there is no {name}: does a `return` miss, or '
                             'an entry of the cache?')
    return Tried([array(y) for y in ys],
                 [tuple(map(array, pair)) for pair in caches], set(made))


def check_shapes(case, result):
    """Shapes of outputs and of the cache, with what a wrong one means."""
    cached = 0
    for T, y, (k, v) in zip(case.chunks, result.ys, result.caches,
                            strict=True):
        cached += T
        place = f'for {case}, after {cached} tokens: '
        if y.shape != (case.B, T, case.D):
            raise NotYet(f'{place}the output has shape {y.shape}; what comes '
                         'in and what goes out have the same one')
        for name, x in (('k', k), ('v', v)):
            if x.ndim != 4:
                raise NotYet(f'{place}{name} has {x.ndim} dimensions: batch, '
                             'heads, tokens and head width are four')
            B, S, G, hd = x.shape
            if G == case.H != case.kv_heads:
                raise NotYet(f'{place}the cache has as many heads as there '
                             'are query heads: shared keys and values were '
                             'copied out, which is what sharing was to save')
            if S == T != cached:
                raise NotYet(f'{place}{name} holds only the new tokens: the '
                             'ones of before are lost')
            if (B, S, G, hd) != (case.B, cached, case.kv_heads, case.hd):
                raise NotYet(f'{place}{name} holds {S} tokens of {G} heads, '
                             f'width {hd}, for {B} sequences')


def check_values(case, result, right, mistakes):
    """Outputs against the reference; names the mistake that explains them.

    right: arguments of `outputs`; mistakes: as MISTAKES.
    """
    Y = np.concatenate(result.ys, axis=1)
    wanted = outputs(case, **right)
    if np.abs(Y - wanted).max() < TOLERANCE:
        return
    for changes, message in mistakes.values():
        if np.abs(Y - outputs(case, **changes)).max() < TOLERANCE:
            raise NotYet(f'for {case}: {message}')
    off = np.abs(Y - wanted).max(axis=(0, 2)) >= TOLERANCE
    first = int(np.argmax(off))
    start = case.starts()[first]
    raise NotYet(f'for {case}: the output of token {first} is the first that '
                 'is wrong'
                 + (', in the first chunk, with an empty cache'
                    if not start else f', with {start} tokens cached'))


def steps(cases, right=(), mistakes=MISTAKES):
    """A check of a step on cases, a function that returns StepCases."""
    def check(call, values):
        for case in cases():
            result = call(case)
            check_shapes(case, result)
            check_values(case, result, dict(right), mistakes)
    return check
