"""The same weights in Hugging Face transformers, and its `generate`.

Our rotary model without biases is their Llama, but for two things: we turn
pairs (2i, 2i + 1) of a head, they turn (i, i + hd/2), so the rows of their
query and key matrices stand in another order; and where no heads are
shared, our three projections are one matrix.

D model width, H heads, hd head width
"""

import os
import time

os.environ['HF_HUB_OFFLINE'] = '1'  # nothing is fetched, ours are the weights

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from .. import torch as d2l  # noqa: E402
from .measure import Method  # noqa: E402
from .methods_torch import bandwidth, device, forget, peak  # noqa: E402, F401

# shared name below a block -> theirs
NAMES = {'norm1': 'input_layernorm', 'norm2': 'post_attention_layernorm',
         'attention.W_q': 'self_attn.q_proj',
         'attention.W_k': 'self_attn.k_proj',
         'attention.W_v': 'self_attn.v_proj',
         'attention.W_o': 'self_attn.o_proj', 'ffn.W_g': 'mlp.gate_proj',
         'ffn.W_1': 'mlp.up_proj', 'ffn.W_2': 'mlp.down_proj'}


def config(sizes, width):
    """Their description of our GPT; width: of the feed-forward network."""
    return transformers.LlamaConfig(
        vocab_size=sizes['vocab_size'], hidden_size=sizes['num_hiddens'],
        intermediate_size=width, num_hidden_layers=sizes['num_blks'],
        num_attention_heads=sizes['num_heads'],
        num_key_value_heads=sizes.get('num_kv_heads') or sizes['num_heads'],
        max_position_embeddings=sizes['max_len'], hidden_act='silu',
        rms_norm_eps=sizes.get('epsilon', d2l.EPSILON),
        rope_parameters=dict(rope_type='default',
                             rope_theta=float(sizes.get('base', 10000))),
        tie_word_embeddings=True, attention_bias=False, mlp_bias=False,
        # without an end token `generate` makes as many tokens as it is asked
        bos_token_id=None, eos_token_id=None, pad_token_id=None)


def half_split(W, head_dim):
    """Rows (H * hd, D) of each head: the even ones, then the odd ones."""
    W = W.unflatten(0, (-1, head_dim // 2, 2))               # (H, hd/2, 2, D)
    return W.transpose(1, 2).flatten(0, 2)


def rename(weights, num_blks, head_dim):
    """{their name: tensor} of our {shared name: tensor}."""
    theirs = {'model.embed_tokens.weight': weights['token_emb.weight'],
              'lm_head.weight': weights['token_emb.weight'],
              'model.norm.weight': weights['norm.weight']}
    for i in range(num_blks):
        ours = {name.removeprefix(f'blks.{i}.').removesuffix('.weight'): W
                for name, W in weights.items()
                if name.startswith(f'blks.{i}.')}
        if 'attention.W_qkv' in ours:
            for c, W in zip('qkv', ours.pop('attention.W_qkv').chunk(3),
                            strict=True):
                ours[f'attention.W_{c}'] = W
        for c in 'qk':
            name = f'attention.W_{c}'
            ours[name] = half_split(ours[name], head_dim)
        theirs |= {f'model.layers.{i}.{NAMES[name]}.weight': W
                   for name, W in ours.items()}
    return theirs


def load(sizes, filename):
    """Their model with the weights of our file, each of them used."""
    weights = load_file(filename)
    model = transformers.LlamaForCausalLM(
        config(sizes, len(weights['blks.0.ffn.W_1.weight'])))
    model.load_state_dict(rename(
        weights, sizes['num_blks'],
        sizes['num_hiddens'] // sizes['num_heads']))
    return model.to(d2l.try_gpu()).eval()


class Clock(transformers.generation.streamers.BaseStreamer):
    """Notes when `generate` hands over the prompt and each new token."""

    def __init__(self):
        self.times = []

    def put(self, value):
        self.times.append(time.perf_counter())

    def end(self):
        pass


class Dynamic(Method):
    """Their cache that grows; both times are taken from one `generate`."""

    arguments = {}

    def __init__(self, model, prompts, steps):
        super().__init__(model, prompts, steps)
        self.X = torch.as_tensor(prompts, device=model.device)

    def run(self):
        clock = Clock()
        start = time.perf_counter()
        ids = self.model.generate(
            self.X, attention_mask=torch.ones_like(self.X), do_sample=False,
            max_new_tokens=self.steps + 1, streamer=clock, **self.arguments)
        _, first, *rest = clock.times
        self.ids = ids[0, self.context:].tolist()
        return first - start, (rest[-1] - first) / len(rest)


class Static(Dynamic):
    arguments = dict(cache_implementation='static')


METHODS = {'dynamic': Dynamic, 'static': Static}
