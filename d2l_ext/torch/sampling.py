"""One token from the logits of the last position."""

import torch

from ..checks import check_sampling

__all__ = ['sample_token']


def sample_token(logits, temperature=1.0, top_k=None):
    """Draw one id per row of logits (B, V); returns (B, 1).

    temperature 0 takes the likeliest token. top_k keeps exactly so many
    tokens, at most all; of equal logits the lowest ids stay. ValueError for
    a temperature below 0 or a top_k below 1.
    """
    check_sampling(temperature, top_k)
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits.float() / temperature
    if top_k is None:
        return torch.multinomial(logits.softmax(-1), 1)
    # a stable sort keeps equal logits in the order of their ids
    logits, ids = logits.sort(dim=-1, descending=True, stable=True)
    drawn = torch.multinomial(logits[:, :top_k].softmax(-1), 1)
    return ids.gather(-1, drawn)
