"""Where a Hugging Face tensor lies in a vLLM model: the module, and which elements are here.

vLLM fuses projections (q, k, v into one; gate, up into one) and gives each rank
of tensor parallelism a part. A tensor is looked up by its name, through the
model's own `packed_modules_mapping`; the type of the module says the rest.
Types and attributes are vLLM's; nothing depends on a model's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from trimaran.errors import InternalError
from trimaran.types import TensorInfo

PLAIN_METHODS = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)


@dataclass(frozen=True, slots=True)
class Place:
    """One of a module's parameters, or a part of it."""

    module: Any
    path: str
    parameter: str
    """weight or bias."""
    shard: int | None
    """Place in a fused module; None where nothing is fused."""


@dataclass(frozen=True, slots=True)
class Held:
    """This rank holds elements start..stop (exclusive) of a tensor along `axis`."""

    axis: int
    start: int
    stop: int
    offset: int = 0
    """Where they begin in the module's parameter, along the same axis."""


class Finder:
    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = dict(model.named_modules())
        self._fused: dict[str, tuple[str, int]] = {
            part: (fused, index)
            for fused, parts in getattr(model, "packed_modules_mapping", {}).items()
            for index, part in enumerate(parts)
            if len(parts) > 1
        }
        mapper = getattr(model, "hf_to_vllm_mapper", None)
        # Renames only: the mapper also knows fusions, but not the order of their parts.
        rename = getattr(mapper, "get_rename_mapper", None)
        self._mapper: Any = rename() if rename else None

    def find(self, name: str) -> Place:
        """Raises InternalError when the model has no such tensor."""
        renamed = self._mapper.apply_list([name]) if self._mapper else [name]
        path, _, parameter = (renamed[0] if renamed else name).rpartition(".")
        if path in self._modules:
            return Place(self._modules[path], path, parameter, None)
        parent, _, last = path.rpartition(".")
        fused, index = self._fused.get(last, ("", None))
        path = f"{parent}.{fused}"
        if index is None or path not in self._modules:
            raise InternalError(f"{name}: no module of the vllm model holds it; it cannot be read")
        return Place(self._modules[path], path, parameter, index)


def locate(place: Place, tensor: TensorInfo) -> Held:
    """Raises InternalError naming a module of a kind that it does not know."""
    module = place.module
    method = getattr(module, "quant_method", None)
    if method is not None and not isinstance(method, PLAIN_METHODS):
        raise _unknown(place, tensor, f"of {type(method).__name__}")
    if place.shard is not None:
        return _in_fused(place, tensor)
    if isinstance(module, RowParallelLinear) and place.parameter == "weight":
        return _of_rank(module, 1, module.input_size_per_partition)
    if isinstance(module, RowParallelLinear | ReplicatedLinear):
        return _whole(tensor)
    if isinstance(module, QKVParallelLinear | MergedColumnParallelLinear) and module.tp_size > 1:
        raise _unknown(place, tensor, "fused in the checkpoint already, on several ranks")
    if isinstance(module, ColumnParallelLinear):
        return _of_rank(module, 0, module.output_size_per_partition)
    if isinstance(module, VocabParallelEmbedding):
        indices = module.shard_indices
        return Held(0, indices.org_vocab_start_index, indices.org_vocab_end_index)
    if isinstance(module, LinearBase) or method is not None:
        raise _unknown(place, tensor, "a layer of this kind")
    return _whole(tensor)


def _in_fused(place: Place, tensor: TensorInfo) -> Held:
    module, shard = place.module, place.shard
    assert shard is not None
    rank = module.tp_rank
    if isinstance(module, QKVParallelLinear):
        sizes = [
            module.num_heads * module.head_size,
            module.num_kv_heads * module.head_size,
            module.num_kv_heads * module.v_head_size,
        ]
        # Where there are more ranks than key/value heads, several ranks hold the same one.
        kv_rank = rank // module.num_kv_head_replicas
        ranks = [rank, kv_rank, kv_rank]
    elif isinstance(module, MergedColumnParallelLinear):
        sizes = [size // module.tp_size for size in module.output_sizes]
        ranks = [rank] * len(sizes)
    else:
        raise _unknown(place, tensor, "a fusion of this kind")
    if sum(sizes) != module.output_size_per_partition or shard >= len(sizes):
        raise _unknown(place, tensor, f"{sizes} are not its parts")
    first = ranks[shard] * sizes[shard]
    return Held(0, first, first + sizes[shard], sum(sizes[:shard]))


def _of_rank(module: Any, axis: int, size: int) -> Held:
    return Held(axis, module.tp_rank * size, (module.tp_rank + 1) * size)


def _whole(tensor: TensorInfo) -> Held:
    return Held(0, 0, tensor.shape[0] if tensor.shape else 1)


def _unknown(place: Place, tensor: TensorInfo, what: str) -> InternalError:
    return InternalError(
        f"{tensor.name}: lies in {place.path}, a {type(place.module).__name__}, {what}, which cannot"
        " be read back; its loaded weights stay unproven"
    )
