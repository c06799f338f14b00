"""Parameters as NumPy arrays and files, in names both backends share.

The names are those of the torch `state_dict`; a linear map is stored as
(out, in).
"""

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file, save_file

from ..checks import check_weights
from ..files import atomic_path, check_file

__all__ = ['weight_shapes', 'get_weights', 'set_weights', 'save_weights',
           'load_weights']


def weight_shapes(model):
    """{name: shape} of all parameters."""
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def get_weights(model):
    """{name: fp32 NumPy array} of all parameters, copies."""
    return {name: p.detach().cpu().float().clone().numpy()
            for name, p in model.named_parameters()}


def set_weights(model, weights):
    """Copy {name: array} into the model, whose type and device stay.

    ValueError, with nothing copied, if a name is missing or unknown or a
    shape does not fit.
    """
    check_weights(weight_shapes(model), weights)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(as_tensor(weights[name]))


def as_tensor(x):
    # NumPy knows no bf16, torch does not take all that is like an array
    return x if torch.is_tensor(x) else torch.from_numpy(np.asarray(x))


def save_weights(model, filename):
    """Write all parameters to a safetensors file; replaces it whole."""
    tensors = {name: p.detach().cpu().contiguous()
               for name, p in model.named_parameters()}
    with atomic_path(filename) as partial:
        save_file(tensors, partial)


def load_weights(model, filename):
    """Copy a safetensors file of either backend into the model.

    FileNotFoundError if there is no such file; ValueError, with nothing
    copied, if it is no safetensors file or its tensors do not fit.
    """
    check_file(filename)
    try:
        weights = load_file(filename)
    except safetensors.SafetensorError as e:
        raise ValueError(f'{filename} is no whole safetensors file: {e}'
                         ) from e
    set_weights(model, weights)
