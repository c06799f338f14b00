"""Normalization, feed-forward network and the Transformer block."""

from torch import nn
from torch.nn import functional as F

from ..checks import check_choice
from .attention import MultiHeadAttention

__all__ = ['EPSILON', 'make_norm', 'FFN', 'TransformerBlock']

EPSILON = 1e-5  # the frameworks' defaults differ; this one is used in both


def make_norm(norm, num_hiddens, epsilon=EPSILON):
    """'rms' or 'layer' normalization over the last axis."""
    check_choice('norm', norm, ('rms', 'layer'))
    kind = nn.RMSNorm if norm == 'rms' else nn.LayerNorm
    return kind(num_hiddens, eps=epsilon)


class FFN(nn.Module):
    """'gelu': W_2 gelu(W_1 x), four times as wide as the model; 'swiglu':
    W_2 (silu(W_g x) * W_1 x), 8/3 as wide, so that both cost the same.
    """

    def __init__(self, num_hiddens, act='swiglu', bias=False):
        super().__init__()
        check_choice('act', act, ('gelu', 'swiglu'))
        width = (4 * num_hiddens if act == 'gelu'
                 else round(8 * num_hiddens / 3))
        if act == 'swiglu':
            self.W_g = nn.Linear(num_hiddens, width, bias=bias)
        self.act = act
        self.W_1 = nn.Linear(num_hiddens, width, bias=bias)
        self.W_2 = nn.Linear(width, num_hiddens, bias=bias)

    def forward(self, X):
        if self.act == 'gelu':
            return self.W_2(F.gelu(self.W_1(X), approximate='tanh'))
        return self.W_2(F.silu(self.W_g(X)) * self.W_1(X))


class TransformerBlock(nn.Module):
    """Attention, then a feed-forward network, each added to its input.

    attn_factory(), ffn_factory(): build other parts than the default ones;
    attention is called as attention(queries, keys, values, valid_lens).
    pre_norm: normalize what goes into a part, else what comes out of a sum.
    X: (B, T, D), valid_lens: (B,) or (B, T).
    """

    def __init__(self, num_hiddens, num_heads, dropout=0, norm='rms',
                 act='swiglu', pre_norm=True, bias=False, attn_factory=None,
                 ffn_factory=None, *, epsilon=EPSILON):
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = attn_factory() if attn_factory else (
            MultiHeadAttention(num_hiddens, num_heads, dropout, bias))
        self.ffn = ffn_factory() if ffn_factory else (
            FFN(num_hiddens, act, bias))
        self.norm1 = make_norm(norm, num_hiddens, epsilon)
        self.norm2 = make_norm(norm, num_hiddens, epsilon)
        self.dropout = nn.Dropout(dropout)

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

    def forward(self, X, valid_lens=None):
        Z = self.before_attention(X)
        Y = self.attention(Z, Z, Z, valid_lens)
        return self.after_attention(X, Y)
