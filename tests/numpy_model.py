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


def normalize(w, name, x, norm, epsilon):
    if norm == 'layer':
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
    return x * w[name + '.weight'] + w.get(name + '.bias', 0.0)


def attend(w, name, x, num_heads, rope, shared, base):
    """Causal self-attention on one sequence x (T, D).

    shared: whether heads may share keys, so that projections come apart.
    """
    T, D = x.shape
    hd, positions = D // num_heads, np.arange(T)
    if shared:
        qs, ks, vs = (linear(w, f'{name}.W_{c}', x) for c in 'qkv')
    else:
        qs, ks, vs = np.split(linear(w, name + '.W_qkv', x), 3, axis=-1)
    readers, heads = D // ks.shape[-1], []
    for h in range(num_heads):
        own = slice(h * hd, (h + 1) * hd)
        read = slice(h // readers * hd, (h // readers + 1) * hd)
        q, k, v = qs[:, own], ks[:, read], vs[:, read]
        if rope:
            q, k = (rotate(x, positions, base) for x in (q, k))
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
           act='swiglu', pre_norm=True, num_kv_heads=None, base=10000.0,
           epsilon=1e-5):
    w = {name: a.astype(np.float64) for name, a in weights.items()}
    rows = []
    for ids in X:
        h = w['token_emb.weight'][ids]
        if pos == 'learned':
            h = h + w['pos_emb.weight'][:len(ids)]
        for b in range(num_blks):
            name = f'blks.{b}'

            def norm_of(i, x, name=name):
                return normalize(w, f'{name}.norm{i}', x, norm, epsilon)

            def attention_of(x, name=name):
                return attend(w, f'{name}.attention', x, num_heads,
                              pos == 'rope', num_kv_heads is not None, base)

            if pre_norm:
                h = h + attention_of(norm_of(1, h))
                h = h + feed(w, f'{name}.ffn', norm_of(2, h), act)
            else:
                h = norm_of(1, h + attention_of(h))
                h = norm_of(2, h + feed(w, f'{name}.ffn', h, act))
        rows.append(normalize(w, 'norm', h, norm, epsilon)
                    @ w['token_emb.weight'].T)
    return np.stack(rows)
