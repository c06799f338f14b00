"""The ways to decode in PyTorch.

B batch, T new tokens, S cached + new, G key-value heads, hd head width,
V vocabulary
"""

import torch
from torch.nn import functional as F

from .. import torch as d2l
from .cases import SEED, sizes
from .measure import Method, forget_peak


def load(model_sizes, filename):
    """The model of these sizes with the weights of a file."""
    model = d2l.GPT(**model_sizes).to(d2l.try_gpu()).eval()
    d2l.load_weights(model, filename)
    return model


def save(name, filename):
    """Write the weights that all methods share: random ones, or published."""
    torch.manual_seed(SEED)
    model = (d2l.load_smollm2()[0] if name == 'smollm2'
             else d2l.GPT(**sizes(name)))
    d2l.save_weights(model, filename)


def device():
    return (torch.cuda.get_device_name() if torch.cuda.is_available()
            else 'CPU')


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def forget():
    """Let the peak memory start anew."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    forget_peak()


def forward_static(model, ks, vs, X, t):
    """Logits (B, V) of the last of new tokens X (B, T) at position t.

    ks, vs: for each block a buffer (B, G, max_len, hd), of which t slots are
    filled; the new rows are written into it. T is 1, or t is 0.
    """
    T = X.shape[1]
    S = t + T
    H = model.token_emb(X)
    if model.pos == 'learned':
        H = H + model.pos_emb.weight[t:S]
    for k_all, v_all, blk in zip(ks, vs, model.blks, strict=True):
        Z = blk.before_attention(H)
        q, k, v = blk.attention.project(Z, Z, Z, t)
        k_all[:, :, t:S], v_all[:, :, t:S] = k, v
        Y = F.scaled_dot_product_attention(
            q, k_all[:, :, :S], v_all[:, :, :S], is_causal=T > 1,
            enable_gqa=True)
        Y = blk.attention.W_o(Y.transpose(1, 2).flatten(2))
        H = blk.after_attention(H, Y)
    return model.norm(H[:, -1]) @ model.token_emb.weight.T


def greedy(logits):
    token = logits.argmax(-1, keepdim=True)                  # (B, 1)
    synchronize()
    return token


class TorchMethod(Method):
    """Prompts as a tensor where the model is."""

    def __init__(self, model, prompts, steps):
        super().__init__(model, prompts, steps)
        self.X = torch.as_tensor(prompts, device=model.norm.weight.device)

    @torch.inference_mode()
    def run(self):
        return super().run()


class Naive(TorchMethod):
    most_steps = 3

    def read(self):
        self.history = self.X
        return greedy(self.model(self.X)[:, -1])

    def step(self, token, i):
        self.history = torch.cat([self.history, token], dim=1)
        return greedy(self.model(self.history)[:, -1])


class Growing(TorchMethod):
    def read(self):
        self.caches = [{} for _ in self.model.blks]
        return self.step(self.X, 0)

    def step(self, token, i):
        return greedy(self.model.forward_cached(token, self.caches)[:, -1])


class Static(TorchMethod):
    def read(self):
        self.buffers = d2l.fast_cache(self.model, len(self.X),
                                      self.context + self.steps)
        return greedy(forward_static(self.model, *self.buffers, self.X, 0))

    def step(self, token, i):
        return greedy(forward_static(self.model, *self.buffers, token,
                                     self.context + i))


class Fast(TorchMethod):
    """What `generate_batch` does, step by step."""

    def read(self):
        model, B = self.model, len(self.X)
        self.step_of, self.parts = d2l.fast_parts(model)
        self.cache = d2l.may_vary(*d2l.fast_cache(
            model, B, self.context + self.steps))
        self.starts = self.X.new_zeros(B)
        return self.feed(d2l.fast_pass, self.X, 0)

    def feed(self, run, X, t):
        t = torch.tensor(t, device=X.device)
        return greedy(run(self.parts, X, *self.cache, t, self.starts))

    def step(self, token, i):
        return self.feed(self.step_of, token, self.context + i)


METHODS = {'naive': Naive, 'growing': Growing, 'static': Static,
           'fast': Fast}
bandwidth, peak = d2l.read_bandwidth, d2l.peak_memory
