"""The forward pass once more, in NumPy and one head at a time.

Written apart from both backends, in float64, as the third opinion. Weights
come as {shared name: array}; X: (B, T) ids; returns logits (B, T, V).
"""

import numpy as np


def rotate(x, positions, base=10000.0):
    """Rotate the pairs of x (T, hd) as complex numbers."""
    hd = x.shape[-1]
    angles = positions[:, None] * base ** (-np.arange(0, hd, 2) / hd)
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)
    y = np.empty_like(x)
    y[:, 0::2], y[:, 1::2] = turned.real, turned.imag
    return y


def linear(w, name, x):
    return x @ w[name + '.weight'].T + w.get(name + '.bias', 0.0)


def normalize(w, name, x, norm):
    if norm == 'layer':
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x * w[name + '.weight'] + w.get(name + '.bias', 0.0)


def attend(w, name, x, num_heads, rope):
    """Causal self-attention on one sequence x (T, D)."""
    T, D = x.shape
    hd, positions = D // num_heads, np.arange(T)
    qkv, heads = linear(w, name + '.W_qkv', x), []
    for h in range(num_heads):
        q, k, v = (qkv[:, i * D + h * hd:i * D + (h + 1) * hd]
                   for i in range(3))
        if rope:
            q, k = rotate(q, positions), rotate(k, positions)
        out = np.zeros((T, hd))
        for i in range(T):
            score = k[:i + 1] @ q[i] / np.sqrt(hd)
            weight = np.exp(score - score.max())
            out[i] = weight / weight.sum() @ v[:i + 1]
        heads.append(out)
    return linear(w, name + '.W_o', np.concatenate(heads, axis=-1))


def feed(w, name, x, act):
    a = linear(w, name + '.W_1', x)
    if act == 'gelu':
        a = a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))
    else:
        g = linear(w, name + '.W_g', x)
        a = g / (1 + np.exp(-g)) * a
    return linear(w, name + '.W_2', a)


def logits(weights, X, num_heads, num_blks, pos='rope', norm='rms',
           act='swiglu', pre_norm=True):
    w = {name: a.astype(np.float64) for name, a in weights.items()}
    rows = []
    for ids in X:
        h = w['token_emb.weight'][ids]
        if pos == 'learned':
            h = h + w['pos_emb.weight'][:len(ids)]
        for b in range(num_blks):
            name, rope = f'blks.{b}', pos == 'rope'

            def norm_of(i, x, name=name):
                return normalize(w, f'{name}.norm{i}', x, norm)

            if pre_norm:
                h = h + attend(w, f'{name}.attention', norm_of(1, h),
                               num_heads, rope)
                h = h + feed(w, f'{name}.ffn', norm_of(2, h), act)
            else:
                h = norm_of(1, h + attend(w, f'{name}.attention', h,
                                          num_heads, rope))
                h = norm_of(2, h + feed(w, f'{name}.ffn', h, act))
        rows.append(normalize(w, 'norm', h, norm)
                    @ w['token_emb.weight'].T)
    return np.stack(rows)
