"""What differs from the version before, for an engine that writes it into the parameters that it has.

It lies in host memory of its own. For each tensor that changed, in the manifest's order:

    positions   int32, of the changed elements among all of the tensor's, row-major
    values      their new ones, in the tensor's dtype

each on a cache line. Both are in the order of the blocks, and ascend within a block. How many belong
to which block is said beside it: who holds some blocks of a tensor takes one slice of either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trimaran.errors import InputError
from trimaran.types import TensorInfo
from weights.memory.host_memory import DTYPES, HostMemory, MemoryReader
from weights.version.layout import align
from weights.version.manifest import ITEM_BYTES

Counts = Mapping[str, Sequence[int]]
"""Tensor's name -> changed elements of each of its blocks; without tensors that did not change."""


@dataclass(frozen=True, slots=True)
class ChangedTensor:
    """Example: `flat[changed.positions] = changed.values`, where `flat` has all elements in a row."""

    info: TensorInfo
    counts: Sequence[int]
    positions: torch.Tensor
    values: torch.Tensor

    def within(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(positions, values) in the part start..stop (exclusive) along the tensor's axis. Positions
        are then those among the part's elements, row-major.

        Raises InputError for a part that is no union of blocks.
        """
        shape, axis = self.info.shape or (1,), self.info.axis
        bounds = (0, *self.info.cuts, shape[axis])
        if start == stop:
            return self.positions[:0], self.values[:0]
        if not {start, stop} <= set(bounds):
            raise InputError(f"{self.info.name}: {start} to {stop} is no union of its blocks")
        first, last = bounds.index(start), bounds.index(stop)
        begin, end = sum(self.counts[:first]), sum(self.counts[:last])
        positions, values = self.positions[begin:end], self.values[begin:end]
        inner, left_out = math.prod(shape[axis + 1 :]), shape[axis] - (stop - start)
        if axis > 0 and left_out:
            positions = positions - positions // (shape[axis] * inner) * (left_out * inner)
        return (positions - start * inner if start else positions), values


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that differs from the version whose root is `base_root`."""

    base_root: str
    counts: Counts
    memory: HostMemory

    def description(self) -> dict[str, Any]:
        """Plain values: what `open_changes` needs beside the tensors."""
        return {"path": self.memory.path, "counts": self.counts}

    def tensors(self, tensors: Sequence[TensorInfo]) -> Iterator[ChangedTensor]:
        """`tensors`: the version's."""
        places, _ = lay_out_changes(tensors, self.counts)
        return _cut(self.memory.buffer, places)


def open_changes(
    description: dict[str, Any], tensors: Sequence[TensorInfo]
) -> Iterator[ChangedTensor]:
    """Those of another process, only to be read, and mapped as long as one of them is kept. Raises
    TransferError when their owner is gone."""
    places, size = lay_out_changes(tensors, description["counts"])
    return _cut(MemoryReader().map(description["path"], size), places)


@dataclass(frozen=True, slots=True)
class ChangeSlot:
    """Where the changes of one tensor lie: bytes of the memory."""

    info: TensorInfo
    counts: Sequence[int]
    positions: slice
    values: slice


def lay_out_changes(tensors: Sequence[TensorInfo], counts: Counts) -> tuple[list[ChangeSlot], int]:
    """The places of the tensors that changed, and the size of the whole in bytes."""
    places: list[ChangeSlot] = []
    end = 0
    for info in tensors:
        if total := sum(counts.get(info.name, ())):
            positions = slice(end, end + 4 * total)
            start = align(positions.stop)
            values = slice(start, start + ITEM_BYTES[info.dtype] * total)
            end = align(values.stop)
            places.append(ChangeSlot(info, counts[info.name], positions, values))
    return places, end


def _cut(buffer: torch.Tensor, places: Sequence[ChangeSlot]) -> Iterator[ChangedTensor]:
    for place in places:
        positions = buffer[place.positions].view(torch.int32)
        values = buffer[place.values].view(DTYPES[place.info.dtype])
        yield ChangedTensor(place.info, place.counts, positions, values)
