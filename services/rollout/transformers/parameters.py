"""What transformers' model calls a version's tensors.

A Hugging Face folder has three matrices for each expert; transformers keeps those of all experts of a layer in two
parameters, `gate_up_proj` [E, 2 I, H] and `down_proj` [E, H, I].
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
STACKED = "gate_up_proj"


class HeldParameter(NamedTuple):
    parameter: torch.nn.Parameter
    own: torch.Tensor
    """The tensor's part of it: a view, of contiguous elements."""


def find_parameter(model: torch.nn.Module, name: str) -> HeldParameter:
    """Raises AttributeError where the model has no such tensor.

    Example: find_parameter(model, "model.layers.0.mlp.experts.3.up_proj.weight").own
    """
    expert = EXPERT.fullmatch(name)
    layer = model.get_submodule(expert[1]) if expert else None
    if expert is None or layer is None or not hasattr(layer, STACKED):
        parameter = model.get_parameter(name)
        return HeldParameter(parameter, parameter)
    number, part = int(expert[2]), expert[3]
    parameter = layer.get_parameter("down_proj" if part == "down" else STACKED)
    own = parameter[number]
    return HeldParameter(parameter, own if part == "down" else own.chunk(2)[part == "up"])
