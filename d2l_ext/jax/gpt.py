"""A decoder-only language model in the book's names.

B batch, T tokens, H heads, hd head width, D model width (H * hd),
V vocabulary
"""

import jax
import jax.numpy as jnp
from flax import nnx

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


class GPT(nnx.Module):
    """Token ids (B, T) to logits (B, T, V); the head is the embedding.

    pos: 'rope' or 'learned'; norm: 'rms' or 'layer'; act: 'swiglu' or
    'gelu'. num_kv_heads: key-value heads that query heads share in groups,
    see `GQAAttention`; None for one each, in fused projections. base: of the
    rotary positions; epsilon: what norms add to the mean square. ValueError
    for other choices, for heads that do not divide the width, and for more
    than max_len tokens. An id outside the vocabulary gives nan: a lookup in
    a compiled pass cannot raise.
    """

    class CausalAttention(nnx.Module):
        """Self-attention in which no token sees a later one.

        Called like every attention here, it reads `queries` only. Returns
        (B, T, D) and None, as a fused kernel would that keeps no weights.
        """

        def __init__(self, num_hiddens, num_heads, rope=True, bias=False,
                     base=10000, rngs=None):
            check_heads(num_hiddens, num_heads, rope)
            rngs = rngs or nnx.Rngs(0)
            self.num_heads, self.rope, self.base = num_heads, rope, base
            self.W_qkv = nnx.Linear(num_hiddens, 3 * num_hiddens,
                                    use_bias=bias, rngs=rngs)
            self.W_o = nnx.Linear(num_hiddens, num_hiddens, use_bias=bias,
                                  rngs=rngs)

        def project(self, queries, keys=None, values=None, offset=0):
            """q, k, v (B, T, H, hd) of tokens from position offset on."""
            B, T, _ = queries.shape
            q, k, v = (x.reshape(B, T, self.num_heads, -1) for x in jnp.split(
                self.W_qkv(queries), 3, axis=-1))
            if self.rope:
                q, k = (rope(x, offset, self.base) for x in (q, k))
            return q, k, v

        def __call__(self, queries, keys=None, values=None, valid_lens=None):
            T = queries.shape[1]
            q, k, v = self.project(queries)
            # jax.nn.dot_product_attention trains slower on a CPU and averages
            # where a row sees nothing
            mask = attention_mask(T, T, valid_lens, causal=True)
            Y = jnp.einsum('bhts,bshd->bthd',
                           attention_weights(q, k, mask), v)
            return self.W_o(Y.reshape(queries.shape)), None

    def __init__(self, vocab_size, num_hiddens=256, num_heads=8, num_blks=6,
                 max_len=1024, pos='rope', norm='rms', act='swiglu',
                 pre_norm=True, bias=False, dropout=0, rngs=None, *,
                 num_kv_heads=None, base=10000, epsilon=EPSILON):
        check_choice('pos', pos, ('rope', 'learned'))
        check_sizes(vocab_size=vocab_size, num_blks=num_blks, max_len=max_len)
        check_heads(num_hiddens, num_heads, pos == 'rope')
        check_dropout(dropout)
        check_positive(base=base, epsilon=epsilon)
        rngs = rngs or nnx.Rngs(0)
        self.pos, self.max_len = pos, max_len
        self.token_emb = make_embedding(vocab_size, num_hiddens, rngs)
        if pos == 'learned':
            self.pos_emb = make_embedding(max_len, num_hiddens, rngs)

        def attn_factory(rngs):
            if num_kv_heads is None:
                return GPT.CausalAttention(num_hiddens, num_heads,
                                           pos == 'rope', bias, base, rngs)
            from .saved import GQAAttention  # a lesson's, built on this file
            return GQAAttention(num_hiddens, num_heads, num_kv_heads, bias,
                                rope=pos == 'rope', base=base, rngs=rngs)

        self.blks = nnx.List([
            TransformerBlock(num_hiddens, num_heads, dropout, norm, act,
                             pre_norm, bias, attn_factory, rngs=rngs,
                             epsilon=epsilon)
            for _ in range(num_blks)])
        self.norm = make_norm(norm, num_hiddens, epsilon, rngs)

    def __call__(self, X):
        T = X.shape[1]
        check_room(0, T, self.max_len)
        H = self.token_emb(X)
        if self.pos == 'learned':
            H = H + self.pos_emb.embedding[:T]
        for blk in self.blks:
            H = blk(H)
        return self.token_emb.attend(self.norm(H))

    def generate(self, prefix, num_tokens, seed=0, temperature=1.0,
                 top_k=None):
        """Continue a list of ids; the whole history is read for each token.

        Returns prefix + continuation, a list of int. Dropout does not act.
        The history lies in a buffer of the final length, so that one
        compiled pass serves every step; what is not written yet is later,
        hence unseen. ValueError before any work if prefix and new tokens
        exceed max_len.
        """
        vocab_size = self.token_emb.num_embeddings
        prefix = check_prompt(prefix, num_tokens, self.max_len, vocab_size)
        check_sampling(temperature, top_k)
        buffer = jnp.array([prefix + [0] * num_tokens], dtype=jnp.int32)
        keys = jax.random.split(jax.random.key(seed), num_tokens)
        with evaluation(self) as model:
            for t, key in enumerate(keys, start=len(prefix)):
                logits = logits_before(model, buffer, t)
                new = sample_token(logits, temperature, top_k, key)
                buffer = jax.lax.dynamic_update_slice(buffer, new, (0, t))
        return buffer[0].tolist()


def make_embedding(num_embeddings, num_hiddens, rngs):
    """Vectors from a normal with standard deviation 0.02."""
    embedding = nnx.Embed(num_embeddings, num_hiddens, rngs=rngs,
                          embedding_init=nnx.initializers.normal(0.02))
    embedding.dtype = None  # that of the parameters, also once converted
    return embedding


@jax.jit
def logits_before(model, buffer, t):
    """Logits (1, V) that predict token t of a buffer (1, T)."""
    return model(buffer)[:, t - 1]
