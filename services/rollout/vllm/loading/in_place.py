"""The parameters of a vLLM worker that are the version's own numbers, so that they can be replaced.

A layer is loaded by vLLM's own code, which may pack, transpose or quantise what it is given, or keep
something that it has derived from it. Only where its type says that it does nothing of the kind is
written into the parameter: the elements that changed, or all of them, block by block out of the shadow,
with nothing put together on the host. A linear layer that has its weight in packed form alone, for the host's
processor, is packed again by vLLM's own method. For any other vLLM's own code is asked.

Everything that can be looked up or copied before is done while the engine generates, so that the
pause holds the writes alone.

P: changed elements of one tensor on this rank.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from services.rollout.vllm.loading.modules import (
    PLAIN_METHODS,
    Finder,
    ParameterPlace,
    find_heads,
    linear_shape,
    locate,
    span,
)
from trimaran.errors import InternalError
from trimaran.types import TensorInfo
from weights.memory.changes import ChangedTensor
from weights.memory.shadow import StoredTensor

ATTENTION = ("Attention", "MMEncoderAttention", "AscendMMEncoderAttention")
"""Layers of vLLM and vLLM-Ascend without weights of their own: after a load they renew the scales of their
keys and values, and some a copy of attention sinks. Others, such as MLA's, keep products of a projection's weight."""
ASCEND_LINEAR = ("vllm_ascend.ops.linear", "AscendUnquantizedLinearMethod")
"""Module and name of vLLM-Ascend's method of linear layers. After a load it may put the weight into NZ,
which no replica starts with (`ascend`), give it a third dimension, which no version's tensor has, or keep
it in float32, too, where the layer says so (`FLOAT32_COPY`)."""
FLOAT32_COPY = "precast_fp32_weight"


@dataclass(frozen=True, slots=True)
class ParameterPart:
    """The part of a tensor that this rank holds."""

    name: str
    """vLLM's name of the parameter."""
    part: torch.Tensor
    """A view of the parameter, contiguous, of the tensor's shape but for the axis on which it is cut."""
    start: int
    stop: int
    """Along that axis."""
    layer: Any = None
    """That is packed; `part` is then one of its whole weight on the device "meta"."""

    def prepare(self, new: ChangedTensor | StoredTensor) -> Sequence[Write | BlockCopy]:
        """Raises InputError for a part that is no union of the blocks that are there."""
        if isinstance(new, StoredTensor):
            return self.copies(new)
        positions_P, values_P = new.within(self.start, self.stop)
        if not len(positions_P):
            return []
        device = self.part.device
        values_P = values_P.to(device).to(self.part.dtype)
        write = Write(self.part.view(-1), positions_P.to(device).long(), values_P)
        if 2 * len(positions_P) < self.part.numel():
            return [write]
        # As of an adapter, which changes in each step. To copy all takes less of the pause than to write each.
        new_part = self.part.clone()
        replace(write, flat=new_part.view(-1)).make()
        return [BlockCopy(self.part, new_part)]

    def copies(self, new: StoredTensor) -> list[BlockCopy]:
        """Raises InputError as `prepare` does."""
        return [self._copy(new.info.axis, *run) for run in new.within(self.start, self.stop)]

    def _copy(self, axis: int, first: int, block: torch.Tensor) -> BlockCopy:
        if not block.ndim:
            return BlockCopy(self.part.view(()), block)
        return BlockCopy(self.part.narrow(axis, first, block.shape[axis]), block)


@dataclass(frozen=True, slots=True)
class Write:
    """A write of this rank's changed elements of one tensor."""

    flat: torch.Tensor
    """The target's part, one dimension."""
    positions_P: torch.Tensor
    """int64, on the parameter's device, as the values are."""
    values_P: torch.Tensor

    def make(self) -> None:
        self.flat.index_copy_(0, self.positions_P, self.values_P)


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A copy of this rank's blocks of one tensor, as far as they lie in a row."""

    to: torch.Tensor
    """A view of the parameter; of a packed layer's, of one on the device "meta"."""
    block: torch.Tensor
    """It has the same shape, and lies on the host or beside the parameter."""

    def make(self) -> None:
        self.to.copy_(self.block)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The whole weight of a packed layer. It is put together in the pause, so that one exists at a time."""

    layer: Any
    copies: list[BlockCopy]

    def make(self) -> None:
        whole = torch.empty(linear_shape(self.layer), dtype=self.layer.params_dtype)
        for copy in self.copies:
            to = copy.to
            whole.as_strided(to.shape, to.stride(), to.storage_offset()).copy_(copy.block)
        # A copy of the bias may be packed as well.
        packed = SimpleNamespace(weight=whole, bias=getattr(self.layer, "bias", None))
        self.layer.quant_method.process_weights_after_loading(packed)
        if packed.weight.numel():
            raise InternalError("a layer was not packed again; the log of vllm says why")
        self.layer.cpu_linear = packed.cpu_linear


class Writes:
    """All of one version's.

    Of changes they take 8 bytes and a value for each element, on the parameters' device.

    Example:

        writes = Writes(model, open_changes(description["changes"], tensors_of(description)))
        while not writes.prepare(0.02):
            pass  # the engine goes on generating
        writes.make()  # in a pause
    """

    def __init__(
        self,
        model: torch.nn.Module,
        new: Iterable[ChangedTensor | StoredTensor],
        are_all: bool = False,
    ) -> None:
        """`are_all`: no parameter may stay without them. Raises InternalError as `Targets` does."""
        self._targets = Targets(model)
        self._heads, self._vocabularies = find_heads(model), _vocabularies(model)
        self._are_heads_stale = False
        self._missing = _sizes(model) if are_all else {}
        """Elements by parameter, of those that nothing is prepared for yet."""
        self._left = iter(new)
        self._prepared: list[Write | BlockCopy] = []
        self._packed: dict[str, PackedWeight] = {}

    def prepare(self, seconds: float) -> bool:
        """For about so many seconds; True once all are prepared. Nothing is written.

        Raises InternalError saying why they cannot be made, and torch.OutOfMemoryError where the
        device has no room for them.
        """
        deadline = time.monotonic() + seconds
        for new in self._left:
            target = self._targets.find(new.info)
            if target.layer is None:
                self._prepared += target.prepare(new)  # of another rank's part there is nothing
            elif isinstance(new, StoredTensor):
                weight = PackedWeight(target.layer, [])
                self._packed.setdefault(target.name, weight).copies.extend(target.copies(new))
            else:
                raise InternalError(f"{target.name} is packed for the host's processor")
            self._are_heads_stale |= target.name in self._vocabularies
            if target.name in self._missing:
                self._missing[target.name] -= target.part.numel()
            if time.monotonic() >= deadline:
                return False
        if missing := sorted(name for name, size in self._missing.items() if size > 0):
            raise InternalError(f"the version lacks {', '.join(missing)}, or a part")
        return True

    def make(self) -> None:
        """After an error it is unknown how far it came; a load of a whole version puts it right."""
        for write in (*self._prepared, *self._packed.values()):
            write.make()
        if self._are_heads_stale:
            pack(self._heads)


def _vocabularies(model: torch.nn.Module) -> set[str]:
    """Parameters of which an output layer may keep a packed copy."""
    return {
        f"{path}.weight"
        for path, module in model.named_modules()
        if isinstance(module, VocabParallelEmbedding)
    }


def _sizes(model: torch.nn.Module) -> dict[str, int]:
    """Elements of each parameter that a version has; a vocabulary is padded."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    for path, module in model.named_modules():
        if is_packed(module):
            sizes[f"{path}.weight"] = math.prod(linear_shape(module))
        if isinstance(module, VocabParallelEmbedding) and f"{path}.weight" in sizes:
            indices = module.shard_indices
            num_rows = indices.org_vocab_end_index - indices.org_vocab_start_index
            sizes[f"{path}.weight"] = num_rows * module.embedding_dim
    return sizes


class Targets:
    """Example: Targets(model).find(changed.info).prepare(changed)"""

    def __init__(self, model: torch.nn.Module) -> None:
        """Raises InternalError for a model with a layer that may keep what it derives from others'
        weights."""
        self._finder = Finder(model)
        for path, module in model.named_modules():
            kind = type(module).__name__
            if hasattr(module, "process_weights_after_loading") and kind not in ATTENTION:
                raise InternalError(f"{path}: a {kind} may keep what it derived from weights")
            if getattr(getattr(module, "impl", None), "sinks", None) is not None:
                raise InternalError(f"{path}: a {kind} may keep a copy of its attention sinks")

    def find(self, tensor: TensorInfo) -> ParameterPart:
        """Raises InternalError saying why single elements of it cannot be replaced."""
        return find_part(self._finder, tensor)


def find_part(finder: Finder, tensor: TensorInfo) -> ParameterPart:
    """Raises InternalError saying why single elements of it cannot be replaced."""
    place = finder.find(tensor.name)
    if why := _why_not_plain(place):
        raise InternalError(f"{tensor.name}: lies in {place.path}, {why}")
    layer = place.module if is_packed(place.module) and place.parameter == "weight" else None
    try:
        part = place.values.detach()
        if layer is not None:
            part = torch.empty(linear_shape(layer), dtype=layer.params_dtype, device="meta")
    except AttributeError:
        raise InternalError(f"{tensor.name}: {place.path} has no {place.parameter}") from None
    held = locate(place, tensor)
    start, stop = span(tensor, held)
    shape = list(tensor.shape)
    if shape and part.ndim == len(shape):
        shape[tensor.axis] = stop - start
        here = slice(held.offset, held.offset + held.stop - held.start)
        part = part[(slice(None),) * held.axis + (here,)]
    if list(part.shape) != shape or not part.is_contiguous():
        raise InternalError(f"{tensor.name}: lies in {place.path} in another form")
    return ParameterPart(f"{place.path}.{place.parameter}", part, start, stop, layer)


def _why_not_plain(place: ParameterPlace) -> str | None:
    module: Any = place.module
    if place.adapter is not None:
        return None
    if place.expert is not None or place.is_stack:
        return "with fused experts"
    method = getattr(module, "quant_method", None)
    if method is not None and not _is_plain(type(method)):
        return f"whose method is {type(method).__name__}"
    if getattr(module, FLOAT32_COPY, False):
        return "which keeps its weight in float32, too"
    linear = getattr(module, "cpu_linear", torch.nn.functional.linear)
    # An output layer is packed again after every load, and so is an embedding that is one; see `pack`.
    is_kept = linear is torch.nn.functional.linear or isinstance(module, VocabParallelEmbedding)
    if not is_kept and not is_packed(module):
        return "which is packed for the host's processor"
    return None


def is_packed(module: torch.nn.Module) -> bool:
    """Whether vLLM has packed a linear layer's weight, and dropped the weight itself. Not of an output layer."""
    weight: Any = getattr(module, "weight", None)
    return isinstance(module, LinearBase) and hasattr(module, "cpu_linear") and not weight.numel()


def _is_plain(method: type) -> bool:
    """These alone: a subclass may keep more."""
    return method in PLAIN_METHODS or (method.__module__, method.__qualname__) == ASCEND_LINEAR


def pack(heads: Iterable[VocabParallelEmbedding]) -> None:
    """As the last of every load.

    An output layer that is tied to the embedding is not loaded itself. On the host it keeps a
    packed copy of the weight that would silently stay as it was.
    """
    with torch.no_grad():
        for head in heads:
            head.quant_method.process_weights_after_loading(head)
