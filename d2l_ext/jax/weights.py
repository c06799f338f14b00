"""Parameters as NumPy arrays and files, in names both backends share.

The names are those of the torch `state_dict`; a linear map is stored as
(out, in), so `kernel` is turned over on the way in and out.
"""

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from flax import nnx
from safetensors.flax import load_file, save_file

from ..checks import check_weights
from ..files import atomic_path, check_file

__all__ = ['weight_shapes', 'get_weights', 'set_weights', 'save_weights',
           'load_weights']

TORCH_NAMES = {'kernel': 'weight', 'scale': 'weight', 'embedding': 'weight'}


def named_parameters(model):
    """{shared name: (parameter, whether it is stored turned over)}."""
    named = {}
    for path, parameter in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        *modules, last = map(str, path)
        name = '.'.join([*modules, TORCH_NAMES.get(last, last)])
        named[name] = parameter, last == 'kernel'
    return named


def weight_shapes(model):
    """{name: shape} of all parameters."""
    return {name: p.shape[::-1] if turned else p.shape
            for name, (p, turned) in named_parameters(model).items()}


def get_weights(model):
    """{name: fp32 NumPy array} of all parameters, copies."""
    return {name: np.array(p[...].T if turned else p[...], np.float32)
            for name, (p, turned) in named_parameters(model).items()}


def set_weights(model, weights):
    """Copy {name: array} into the model, whose type and device stay.

    ValueError, with nothing copied, if a name is missing or unknown or a
    shape does not fit.
    """
    check_weights(weight_shapes(model), weights)
    for name, (p, turned) in named_parameters(model).items():
        new = np.asarray(weights[name])
        new = jnp.array(new.T if turned else new, dtype=p.dtype)
        if isinstance(p.get_value(), jax.Array):
            p[...] = new
        else:  # only a shape so far
            p.set_value(new)


def save_weights(model, filename):
    """Write all parameters to a safetensors file; replaces it whole."""
    tensors = {name: p[...].T if turned else p[...]
               for name, (p, turned) in named_parameters(model).items()}
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
