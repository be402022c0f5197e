"""Layers, optimizers and model state.

A layer is a plain class: it makes its parameters in `__init__` and is called with a Tensor. A
model is any object; `state.get_parameters` finds the parameters by walking its attributes.
"""

from typing import TYPE_CHECKING

from tinyml.functional import missing
from tinyml.nn import optim, state
from tinyml.nn.layers import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    ConvTranspose1d,
    ConvTranspose2d,
    Dropout,
    Embedding,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LayerNorm2d,
    Linear,
    LSTMCell,
    RMSNorm,
)
from tinyml.tensor import Tensor

__all__ = [
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "InstanceNorm",
    "LSTMCell",
    "LayerNorm",
    "LayerNorm2d",
    "Linear",
    "RMSNorm",
    "optim",
    "state",
]

if not TYPE_CHECKING:  # else every name would be known

    def __getattr__(name: str) -> object:
        raise missing.no_layer(Tensor, __all__, name)
