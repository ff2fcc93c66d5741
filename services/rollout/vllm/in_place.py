"""The parameters of a vLLM worker that are the version's own numbers, so that single ones can be replaced.

A layer is loaded by vLLM's own code, which may pack, transpose or quantise what it is given, or keep
something that it has derived from it. Only where its type says that it does nothing of the kind is a
changed element written into the parameter; for any other a whole load is asked for.

P: changed elements of one tensor on this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from services.rollout.vllm.modules import PLAIN_METHODS, Finder, Place, locate, span
from services.weight_sync.data.changes import ChangedTensor
from trimaran.errors import InternalError
from trimaran.types import TensorInfo

ATTENTION = ("Attention", "MMEncoderAttention")
"""vLLM's layers without weights of their own: after a load they renew the scales of their keys and
values. Others, such as MLA's, keep products of a projection's weight."""


@dataclass(frozen=True, slots=True)
class Target:
    """The part of a tensor that this rank holds."""

    flat: torch.Tensor
    """A view of the parameter, one dimension."""
    start: int
    stop: int
    """Along the axis on which the tensor is cut."""

    def write(self, changed: ChangedTensor) -> None:
        positions_P, values_P = changed.within(self.start, self.stop)
        if len(positions_P):
            device = self.flat.device
            values_P = values_P.to(device).to(self.flat.dtype)
            self.flat.index_copy_(0, positions_P.to(device).long(), values_P)


class Targets:
    """Example: Targets(model).find(changed.info).write(changed)"""

    def __init__(self, model: torch.nn.Module) -> None:
        """Raises InternalError for a model with a layer that may keep what it derives from others'
        weights."""
        self._finder = Finder(model)
        for path, module in model.named_modules():
            kind = type(module).__name__
            if hasattr(module, "process_weights_after_loading") and kind not in ATTENTION:
                raise InternalError(f"{path}: a {kind} may keep what it derived from weights")

    def find(self, tensor: TensorInfo) -> Target:
        """Raises InternalError saying why single elements of it cannot be replaced."""
        place = self._finder.find(tensor.name)
        if why := _why_not_plain(place):
            raise InternalError(f"{tensor.name}: lies in {place.path}, {why}")
        held = locate(place, tensor)
        start, stop = span(tensor, held)
        shape = list(tensor.shape)
        part = getattr(place.module, place.parameter).detach()
        if shape and part.ndim == len(shape):
            shape[tensor.axis] = stop - start
            here = slice(held.offset, held.offset + held.stop - held.start)
            part = part[(slice(None),) * held.axis + (here,)]
        if list(part.shape) != shape or not part.is_contiguous():
            raise InternalError(f"{tensor.name}: lies in {place.path} in another form")
        return Target(part.view(-1), start, stop)


def _why_not_plain(place: Place) -> str | None:
    module: Any = place.module
    if place.expert is not None or place.is_stack:
        return "with fused experts"
    method = getattr(module, "quant_method", None)
    # vLLM's own: a subclass may keep more.
    if method is not None and type(method) not in PLAIN_METHODS:
        return f"whose method is {type(method).__name__}"
    linear = getattr(module, "cpu_linear", torch.nn.functional.linear)
    # An output layer is packed again after every load; see `load.pack_heads`.
    if linear is not torch.nn.functional.linear and not isinstance(module, ParallelLMHead):
        return "which is packed for the host's processor"
    return None
