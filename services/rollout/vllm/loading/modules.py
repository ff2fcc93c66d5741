"""Where a Hugging Face tensor lies in a vLLM model: the module, and which elements are here.

vLLM fuses projections (q, k, v into one; gate, up into one), fuses the experts of a layer
(see `experts`), and gives each rank a part. A tensor is looked up by its name, through the
model's own `packed_modules_mapping`; the type of the module says the rest.
Types and attributes are vLLM's; nothing depends on a model's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from services.rollout.vllm.loading.experts import (
    EXPERT,
    INNER_AXIS,
    PARTS,
    STACK,
    STACKED,
    local_number,
    why_unreadable,
)
from trimaran.errors import InternalError
from trimaran.model.tensor_names import ADAPTER
from trimaran.types import TensorInfo

PLAIN_METHODS = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
FUSIONS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
}
"""For models that do not name each of theirs, such as those with a shared expert or latent attention."""
BASE = ".base_layer"
"""After the path of a layer to which vLLM adds adapters: the layer itself."""
SLOT = 0
"""Of the only adapter, among those that vLLM holds at a time."""


@dataclass(frozen=True, slots=True)
class ParameterPlace:
    """One of a module's parameters, or a part of it."""

    module: Any
    path: str
    parameter: str
    """weight or bias; of experts w13_weight or w2_weight."""
    shard: int | None
    """The place in a fused module; None where nothing is fused."""
    expert: int | None = None
    """Its number in the model."""
    is_stack: bool = False
    """All experts of a layer in one tensor."""
    adapter: torch.Tensor | None = None
    """A or B beside the module's weight, as this rank has it. `parameter` is then lora_A.0 of a plain module, or
    lora_A.2 of the third in a fused one."""

    @property
    def values(self) -> torch.Tensor:
        """Raises AttributeError for a parameter that the module lacks."""
        return getattr(self.module, self.parameter) if self.adapter is None else self.adapter


@dataclass(frozen=True, slots=True)
class HeldTensor:
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
            for fused, parts in (FUSIONS | getattr(model, "packed_modules_mapping", {})).items()
            for index, part in enumerate(parts)
            if len(parts) > 1
        }
        mapper = getattr(model, "hf_to_vllm_mapper", None)
        # Renames only: the mapper also knows fusions, but not the order of their parts.
        rename = getattr(mapper, "get_rename_mapper", None)
        self._mapper: Any = rename() if rename else None

    def find(self, name: str) -> ParameterPlace:
        """Raises InternalError when the model has no such tensor."""
        renamed = self._mapper.apply_list([name]) if self._mapper else [name]
        inside = renamed[0] if renamed else name
        path, _, parameter = inside.rpartition(".")
        if match := ADAPTER.fullmatch(name):
            return self._find_adapter(match["matrix"], match["part"])
        if place := self._find_stack(inside):
            return place
        if path in self._modules:
            return self._place(path, parameter, None)
        if place := self._find_expert(inside):
            return place
        parent, _, last = path.rpartition(".")
        fused, index = self._fused.get(last, ("", None))
        path = f"{parent}.{fused}"
        if index is None or path not in self._modules:
            raise InternalError(f"{name}: no module of the vllm model holds it; it cannot be read")
        return self._place(path, parameter, index)

    def _place(self, path: str, parameter: str, shard: int | None) -> ParameterPlace:
        if f"{path}{BASE}" in self._modules:
            path = f"{path}{BASE}"
        return ParameterPlace(self._modules[path], path, parameter, shard)

    def _find_adapter(self, matrix: str, part: str) -> ParameterPlace:
        beside = self.find(f"{matrix}.weight")
        layer: Any = self._modules.get(beside.path.removesuffix(BASE))
        index = beside.shard or 0
        if not beside.path.endswith(BASE):
            raise InternalError(f"{matrix}.{part}: vllm has no adapter beside {beside.path}")
        values = (layer.lora_a_stacked if part == "lora_A" else layer.lora_b_stacked)[index]
        return replace(beside, parameter=f"{part}.{index}", adapter=values[SLOT, 0])

    def _find_expert(self, name: str) -> ParameterPlace | None:
        match = EXPERT.fullmatch(name)
        if match is None or match["part"] not in PARTS:
            return None
        parameter, half = PARTS[match["part"]]
        if path := self._path_of_experts(match["path"]):
            return ParameterPlace(self._modules[path], path, parameter, half, int(match["expert"]))
        return None

    def _find_stack(self, name: str) -> ParameterPlace | None:
        match = STACK.fullmatch(name)
        if match is None or not (path := self._path_of_experts(match["path"])):
            return None
        parameter = STACKED[match["part"]]
        return ParameterPlace(self._modules[path], path, parameter, None, is_stack=True)

    def _path_of_experts(self, path: str) -> str | None:
        # Newer vLLMs have one level more.
        paths = (f"{path}.routed_experts", path)
        return next((path for path in paths if path in self._modules), None)


def check_stack(place: ParameterPlace, tensor: TensorInfo) -> None:
    """Raises InternalError where the experts of a stack cannot be read back."""
    layer = place.module
    if why := why_unreadable(layer, place.parameter):
        raise _unknown(place, tensor, why)
    if tensor.axis != 0 or len(tensor.shape) != 3:
        raise _unknown(place, tensor, f"of shape {tensor.shape}, cut along axis {tensor.axis}")
    if (size := layer.moe_config.moe_parallel_config.tp_size) > 1:
        raise _unknown(place, tensor, f"each expert split among {size} ranks")


def linear_shape(layer: Any) -> tuple[int, int]:
    """[output features, input features] on this rank; a replicated layer has no parts."""
    outputs = getattr(layer, "output_size_per_partition", layer.output_size)
    return outputs, getattr(layer, "input_size_per_partition", layer.input_size)


def find_heads(model: torch.nn.Module) -> list[VocabParallelEmbedding]:
    """Output layers. In some of vLLM's models the embedding is one itself: by that name, or where there is no other."""
    vocabularies = [m for m in model.modules() if isinstance(m, VocabParallelEmbedding)]
    named = [getattr(module, "lm_head", None) for module in model.modules()]
    heads = [one for one in vocabularies if isinstance(one, ParallelLMHead) or one in named]
    return heads or vocabularies


def locate(place: ParameterPlace, tensor: TensorInfo) -> HeldTensor:
    """Raises InternalError naming a module of a kind that it does not know."""
    module = place.module
    if place.adapter is not None:
        return _in_adapter(place, tensor)
    if place.expert is not None:
        return _in_experts(place, tensor)
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
        return HeldTensor(0, indices.org_vocab_start_index, indices.org_vocab_end_index)
    if isinstance(module, LinearBase) or method is not None:
        raise _unknown(place, tensor, "a layer of this kind")
    return _whole(tensor)


def span(tensor: TensorInfo, held: HeldTensor) -> tuple[int, int]:
    """(start, stop) of what this rank holds along the axis on which the tensor is cut. Raises
    InternalError where that is no union of its blocks."""
    shape, axis = tensor.shape or (1,), tensor.axis
    if held.axis == axis:
        start, stop = held.start, held.stop
    elif (held.start, held.stop) == (0, shape[held.axis]):
        start, stop = 0, shape[axis]
    else:
        raise _off_grid(tensor, held)
    bounds = {0, *tensor.cuts, shape[axis]}
    if start > stop or (start < stop and not {start, stop} <= bounds):
        raise _off_grid(tensor, held)
    return start, stop


def _off_grid(tensor: TensorInfo, held: HeldTensor) -> InternalError:
    return InternalError(
        f"{tensor.name}: this rank holds {held.start} to {held.stop} of axis {held.axis}, which is no"
        f" union of the version's blocks (axis {tensor.axis} is cut at {tensor.cuts or 'no place'});"
        " choose another rollout.tensor_parallel"
    )


def _in_fused(place: ParameterPlace, tensor: TensorInfo) -> HeldTensor:
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
    return HeldTensor(0, first, first + sizes[shard], sum(sizes[:shard]))


def _in_adapter(place: ParameterPlace, tensor: TensorInfo) -> HeldTensor:
    """A is split where the matrix is by column, B where it is by row. Each slice of a fused layer has both."""
    by_column = isinstance(place.module, RowParallelLinear)
    if by_column != place.parameter.startswith("lora_A"):
        return _whole(tensor)
    beside = locate(replace(place, parameter="weight", adapter=None), tensor)
    return replace(beside, offset=0)


def _in_experts(place: ParameterPlace, tensor: TensorInfo) -> HeldTensor:
    layer, axis = place.module, INNER_AXIS[place.parameter]
    assert place.expert is not None
    if why := why_unreadable(layer, place.parameter):
        raise _unknown(place, tensor, why)
    if local_number(layer, place.expert) is None:
        return HeldTensor(tensor.axis, 0, 0)
    parallel = layer.moe_config.moe_parallel_config
    size, rest = divmod(tensor.shape[axis], parallel.tp_size)
    if rest:
        raise _unknown(place, tensor, f"split unevenly among {parallel.tp_size} ranks")
    # The halves of a fused parameter may be padded.
    padded = getattr(layer, place.parameter)[0].numel() // tensor.shape[1 - axis] // 2
    first = parallel.tp_rank * size
    return HeldTensor(axis, first, first + size, padded * (place.shard or 0))


def _of_rank(module: Any, axis: int, size: int) -> HeldTensor:
    return HeldTensor(axis, module.tp_rank * size, (module.tp_rank + 1) * size)


def _whole(tensor: TensorInfo) -> HeldTensor:
    return HeldTensor(0, 0, tensor.shape[0] if tensor.shape else 1)


def _unknown(place: ParameterPlace, tensor: TensorInfo, what: str) -> InternalError:
    return InternalError(
        f"{tensor.name}: lies in {place.path}, a {type(place.module).__name__}, {what}, which cannot"
        " be read back; its loaded weights stay unproven"
    )
