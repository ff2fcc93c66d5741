"""One expert's tensors in a fused mixture-of-experts layer of vLLM.

A checkpoint names three matrices an expert: gate and up [I, H], down [H, I]. vLLM keeps those of
all its experts in two parameters: `w13_weight` [E, 2I, H], gate above up, and `w2_weight` [E, H, I].
A rank has either whole experts (expert parallelism) or a part of I of each (tensor parallelism).

After each load the layer's method may change them. How, its type says. A shape would not: it may
be square.

    Triton, on CUDA        as they are
    vLLM-Ascend            transposed: [E, H, 2I] and [E, I, H]
    vLLM on the host       I padded, and each matrix packed for the processor's matrix product

Some checkpoints stack the matrices of all experts of a layer in one tensor, each turned: gate_up_proj
[E, H, 2I] and down_proj [E, I, H].

E: experts on this rank; I: inner size on this rank; H: hidden size; N, K: rows and columns of one
expert's matrix.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)

EXPERT = re.compile(r"(?P<path>.+\.experts)\.(?P<expert>\d+)\.(?P<part>\w+)\.weight")
PARTS = {
    "gate_proj": ("w13_weight", 0),
    "up_proj": ("w13_weight", 1),
    "down_proj": ("w2_weight", None),
    # Mixtral's names of the same three.
    "w1": ("w13_weight", 0),
    "w3": ("w13_weight", 1),
    "w2": ("w2_weight", None),
}
"""Hugging Face's name -> parameter, and which half of it."""
STACK = re.compile(r"(?P<path>.+\.experts)\.(?P<part>gate_up_proj|down_proj)")
STACKED = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}
"""A stacked tensor's name -> parameter."""
INNER_AXIS = {"w13_weight": 0, "w2_weight": 1}
"""The axis of an expert's matrix as the checkpoint has it."""

UNCHANGED = ("TRITON", "BATCHED_TRITON")
ASCEND_METHOD = "AscendUnquantizedFusedMoEMethod"

Restore = Callable[[torch.Tensor], torch.Tensor]
"""One expert's matrix as the layer has it -> [N, K], as vLLM loaded it."""


def why_unreadable(layer: Any, parameter: str) -> str | None:
    """None: `read_expert` gives what the layer computes with."""
    method = layer.quant_method
    if _restore_of(method) is None or not hasattr(layer, parameter):
        backend = getattr(method, "unquantized_backend", None)
        return f"of {type(method).__name__}" + (f" for {backend.name}" if backend else "")
    if layer.moe_config.moe_parallel_config.enable_eplb or getattr(layer, "dynamic_eplb", False):
        return "whose experts move from rank to rank"
    return None


def local_number(layer: Any, expert: int) -> int | None:
    """Among this rank's, of the expert of that number in the model; None: another rank has it."""
    local = layer._map_global_expert_id_to_local_expert_id(expert)  # as vLLM's loader asks
    return None if local == -1 else local


def read_expert(layer: Any, parameter: str, local: int) -> torch.Tensor:
    """[N, K]: [2I, H] of w13_weight, [H, I] of w2_weight, where I may be padded."""
    restore = _restore_of(layer.quant_method)
    assert restore is not None
    return restore(getattr(layer, parameter)[local])


def read_turned(layer: Any, parameter: str, local: int, inner: int) -> torch.Tensor:
    """One expert's matrix as a stack has it: [H, 2I] of w13_weight, [I, H] of w2_weight. `inner`: I, as
    the checkpoint has it; the layer's may be padded."""
    matrix = read_expert(layer, parameter, local)
    if parameter == "w2_weight":
        return matrix[:, :inner].t()
    half = len(matrix) // 2
    return torch.cat([matrix[:inner], matrix[half : half + inner]]).t()


def _restore_of(method: Any) -> Restore | None:
    """None: we do not know what this method makes of its weights."""
    if type(method).__name__ == ASCEND_METHOD:
        return torch.t
    if type(method) is not UnquantizedFusedMoEMethod:
        return None
    if method.unquantized_backend.name in UNCHANGED:
        return lambda matrix_NK: matrix_NK
    isa = _packed_for(method)
    return partial(_unpack, isa=isa) if isa else None


def renew_kernels(model: torch.nn.Module) -> None:
    """Before the layers of a reload.

    On the host vLLM packs experts when it makes their kernel, and it makes it once. So without
    this, later weights would not be packed and yet be computed with as if they were.
    """
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod) and _is_on_host(method):
            method.moe_kernel = None


def _is_on_host(method: Any) -> bool:
    return method.unquantized_backend.name == "CPU"


def _packed_for(method: Any) -> str | None:
    """The instruction set for which the host has packed them; None where it has not."""
    if not _is_on_host(method):
        return None
    # vLLM 0.23 has it in `cpu_fused_moe`.
    kernel = getattr(method, "moe_kernel", None)
    packer = kernel.fused_experts if kernel else getattr(method, "cpu_fused_moe", None)
    isa = None if getattr(packer, "_use_zentorch", False) else getattr(packer, "isa", None)
    return None if isa == "none" else isa


def _unpack(packed_NK: torch.Tensor, isa: str) -> torch.Tensor:
    matrix_NK = torch.empty_like(packed_NK)
    matrix_NK.view(-1)[_origins(tuple(packed_NK.shape), packed_NK.dtype, isa)] = packed_NK.view(-1)
    return matrix_NK


@lru_cache(maxsize=4)
def _origins(shape: tuple[int, int], dtype: torch.dtype, isa: str) -> torch.Tensor:
    """Where each element of a packed matrix was before: int64 [N * K].

    Packing only moves elements. So the numbers of the elements are packed, digit by digit: every
    dtype of weights holds whole numbers below 256 exactly.
    """
    from vllm._custom_ops import cpu_prepack_moe_weight  # of vLLM on the host

    numbers = torch.arange(shape[0] * shape[1])
    origins, unit = torch.zeros_like(numbers), 1
    while unit < len(numbers):
        digit_1NK = (numbers // unit % 256).to(dtype).view(1, *shape)
        origins += cpu_prepack_moe_weight(digit_1NK, isa).view(-1).long() * unit
        unit *= 256
    return origins
