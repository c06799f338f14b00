"""Normalization, feed-forward network and the Transformer block."""

from flax import nnx

from ..checks import check_choice
from .attention import MultiHeadAttention

__all__ = ['EPSILON', 'make_norm', 'FFN', 'TransformerBlock']

EPSILON = 1e-5  # the frameworks' defaults differ; this one is used in both


def make_norm(norm, num_hiddens, epsilon=EPSILON, rngs=None):
    """'rms' or 'layer' normalization over the last axis."""
    check_choice('norm', norm, ('rms', 'layer'))
    kind = nnx.RMSNorm if norm == 'rms' else nnx.LayerNorm
    return kind(num_hiddens, epsilon=epsilon, rngs=rngs or nnx.Rngs(0))


class FFN(nnx.Module):
    """'gelu': W_2 gelu(W_1 x), four times as wide as the model; 'swiglu':
    W_2 (silu(W_g x) * W_1 x), 8/3 as wide, so that both cost the same.
    """

    def __init__(self, num_hiddens, act='swiglu', bias=False, rngs=None):
        check_choice('act', act, ('gelu', 'swiglu'))
        rngs = rngs or nnx.Rngs(0)
        width = (4 * num_hiddens if act == 'gelu'
                 else round(8 * num_hiddens / 3))
        if act == 'swiglu':
            self.W_g = nnx.Linear(num_hiddens, width, use_bias=bias,
                                  rngs=rngs)
        self.act = act
        self.W_1 = nnx.Linear(num_hiddens, width, use_bias=bias, rngs=rngs)
        self.W_2 = nnx.Linear(width, num_hiddens, use_bias=bias, rngs=rngs)

    def __call__(self, X):
        x = X.reshape(-1, X.shape[-1])  # the gradient of a batch would copy
        if self.act == 'gelu':
            y = self.W_2(nnx.gelu(self.W_1(x), approximate=True))
        else:
            y = self.W_2(nnx.silu(self.W_g(x)) * self.W_1(x))
        return y.reshape(X.shape)


class TransformerBlock(nnx.Module):
    """Attention, then a feed-forward network, each added to its input.

    attn_factory(rngs), ffn_factory(rngs): build other parts than the
    default ones; attention is called as attention(queries, keys, values,
    valid_lens) and returns its output and weights or None. pre_norm:
    normalize what goes into a part, else what comes out of a sum.
    X: (B, T, D), valid_lens: (B,) or (B, T).
    """

    def __init__(self, num_hiddens, num_heads, dropout=0, norm='rms',
                 act='swiglu', pre_norm=True, bias=False, attn_factory=None,
                 ffn_factory=None, rngs=None, *, epsilon=EPSILON):
        rngs = rngs or nnx.Rngs(0)
        self.pre_norm = pre_norm
        self.attention = attn_factory(rngs) if attn_factory else (
            MultiHeadAttention(num_hiddens, num_heads, dropout, bias, rngs))
        self.ffn = ffn_factory(rngs) if ffn_factory else (
            FFN(num_hiddens, act, bias, rngs))
        self.norm1 = make_norm(norm, num_hiddens, epsilon, rngs)
        self.norm2 = make_norm(norm, num_hiddens, epsilon, rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def before_attention(self, X):
        """What attention reads, given the block's input X (B, T, D)."""
        return self.norm1(X) if self.pre_norm else X

    def after_attention(self, X, Y):
        """The block's output, given its input X and attention's answer Y."""
        X = X + self.dropout(Y)
        if self.pre_norm:
            return X + self.dropout(self.ffn(self.norm2(X)))
        X = self.norm1(X)
        return self.norm2(X + self.dropout(self.ffn(X)))

    def __call__(self, X, valid_lens=None):
        Z = self.before_attention(X)
        Y, _ = self.attention(Z, Z, Z, valid_lens)
        return self.after_attention(X, Y)
