"""A decoder-only language model in the book's names.

B batch, T tokens, H heads, hd head width, D model width (H * hd),
V vocabulary
"""

import torch
from torch import nn
from torch.nn import functional as F

from ..checks import (
    check_choice,
    check_dropout,
    check_heads,
    check_positive,
    check_prompt,
    check_room,
    check_sampling,
    check_sizes,
)
from .attention import attention_mask, attention_weights, rope
from .block import EPSILON, TransformerBlock, make_norm
from .device import evaluation
from .sampling import sample_token

__all__ = ['GPT']


class GPT(nn.Module):
    """Token ids (B, T) to logits (B, T, V); the head is the embedding.

    pos: 'rope' or 'learned'; norm: 'rms' or 'layer'; act: 'swiglu' or
    'gelu'. num_kv_heads: key-value heads that query heads share in groups,
    see `GQAAttention`; None for one each, in fused projections. base: of the
    rotary positions; epsilon: what norms add to the mean square. ValueError
    for other choices, for heads that do not divide the width, and for more
    than max_len tokens; IndexError for an id outside the vocabulary.
    """

    class CausalAttention(nn.Module):
        """Self-attention in which no token sees a later one.

        Called like every attention here, it reads `queries` only. Returns
        (B, T, D).
        """

        def __init__(self, num_hiddens, num_heads, rope=True, bias=False,
                     base=10000):
            super().__init__()
            check_heads(num_hiddens, num_heads, rope)
            self.num_heads, self.rope, self.base = num_heads, rope, base
            self.W_qkv = nn.Linear(num_hiddens, 3 * num_hiddens, bias=bias)
            self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

        def project(self, queries, keys=None, values=None, offset=0):
            """q, k, v (B, H, T, hd) of tokens from position offset on."""
            q, k, v = (
                x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                for x in self.W_qkv(queries).chunk(3, -1))
            if self.rope:
                q, k = (rope(x, offset, self.base) for x in (q, k))
            return q, k, v

        def forward(self, queries, keys=None, values=None, valid_lens=None):
            T = queries.shape[1]
            q, k, v = self.project(queries)
            if valid_lens is None:
                Y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:  # 0 where a row sees nothing, whatever a kernel gives
                mask = attention_mask(T, T, valid_lens, causal=True,
                                      device=q.device)
                Y = attention_weights(q, k, mask) @ v
            return self.W_o(Y.transpose(1, 2).flatten(2))

    def __init__(self, vocab_size, num_hiddens=256, num_heads=8, num_blks=6,
                 max_len=1024, pos='rope', norm='rms', act='swiglu',
                 pre_norm=True, bias=False, dropout=0, *, num_kv_heads=None,
                 base=10000, epsilon=EPSILON):
        super().__init__()
        check_choice('pos', pos, ('rope', 'learned'))
        check_sizes(vocab_size=vocab_size, num_blks=num_blks, max_len=max_len)
        check_heads(num_hiddens, num_heads, pos == 'rope')
        check_dropout(dropout)
        check_positive(base=base, epsilon=epsilon)
        self.pos, self.max_len = pos, max_len
        self.token_emb = nn.Embedding(vocab_size, num_hiddens)
        nn.init.normal_(self.token_emb.weight, std=0.02)
        if pos == 'learned':
            self.pos_emb = nn.Embedding(max_len, num_hiddens)
            nn.init.normal_(self.pos_emb.weight, std=0.02)

        def attn_factory():
            if num_kv_heads is None:
                return GPT.CausalAttention(num_hiddens, num_heads,
                                           pos == 'rope', bias, base)
            from .saved import GQAAttention  # a lesson's, built on this file
            return GQAAttention(num_hiddens, num_heads, num_kv_heads, bias,
                                rope=pos == 'rope', base=base)

        self.blks = nn.ModuleList([
            TransformerBlock(num_hiddens, num_heads, dropout, norm, act,
                             pre_norm, bias, attn_factory, epsilon=epsilon)
            for _ in range(num_blks)])
        self.norm = make_norm(norm, num_hiddens, epsilon)

    def forward(self, X):
        T = X.shape[1]
        check_room(0, T, self.max_len)
        H = self.token_emb(X)
        if self.pos == 'learned':
            H = H + self.pos_emb.weight[:T]
        for blk in self.blks:
            H = blk(H)
        return self.norm(H) @ self.token_emb.weight.T

    @torch.inference_mode()
    def generate(self, prefix, num_tokens, temperature=1.0, top_k=None):
        """Continue a list of ids; the whole history is read for each token.

        Returns prefix + continuation, a list of int. Dropout does not act.
        ValueError before any work if the two together exceed max_len.
        """
        emb = self.token_emb.weight
        prefix = check_prompt(prefix, num_tokens, self.max_len, len(emb))
        check_sampling(temperature, top_k)
        X = torch.tensor([prefix], device=emb.device)
        with evaluation(self):
            for _ in range(num_tokens):
                new = sample_token(self(X)[:, -1], temperature, top_k)
                X = torch.cat([X, new], dim=1)
        return X[0].tolist()
