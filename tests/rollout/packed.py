"""What a layer of vLLM's on the host really computes with: its parameter, or a packed copy of it.

vLLM packs where the CPU has AVX-512 or AMX; elsewhere its kernels read the parameter's own memory.
"""

from __future__ import annotations

from typing import Any

import torch


def has_packed_copy(head: Any) -> bool:
    """Of an output layer: whether it computes the same after its parameter is zeroed, for a moment."""
    weight = head.weight
    with torch.no_grad():
        held = weight.clone()
        weight.zero_()
        found = bool(head.cpu_linear(torch.ones_like(held[:1]), weight, None).any())
        weight.copy_(held)
    return found


def matrix_of(layer: Any, dtype: torch.dtype) -> torch.Tensor:
    """A copy of what the layer multiplies by, [in, out]: its products with the identity, which are exact."""
    size = getattr(layer, "input_size_per_partition", None) or layer.embedding_dim
    with torch.no_grad():
        return layer.cpu_linear(torch.eye(size, dtype=dtype), layer.weight, None).clone()
