"""A receiver's copy of one version's blocks, in memory that an engine's own process can map."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from trimaran.errors import InputError
from trimaran.types import Manifest, Ranges, TensorInfo
from weights.memory.borrowed import BorrowedMemory
from weights.memory.changes import Changes
from weights.memory.host_memory import DTYPES, HostMemory, MemoryReader, block_view
from weights.version.layout import BlockLayout, PlacedBlock, make_layout
from weights.version.manifest import manifest_from_json, manifest_to_json

Part = Callable[[TensorInfo], tuple[int, int]]
"""Elements start..stop (exclusive) of a tensor along its axis, a union of blocks."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in the blocks in which a shadow has it.

    Example: for first, block in stored.within(0, 8): parameter.narrow(axis, first, n).copy_(block)
    """

    info: TensorInfo
    pieces: Sequence[PlacedBlock]
    buffer: torch.Tensor
    """The shadow's."""

    def within(self, start: int, stop: int) -> list[tuple[int, torch.Tensor]]:
        """(where it begins, elements) of the blocks in start..stop (exclusive) along the tensor's axis,
        counted from `start`; along the first axis they lie in a row, and are one. All are views.

        Raises InputError where they are not all here.
        """
        here = [p for p in self.pieces if start <= p.block.start and p.block.stop <= stop]
        found = sum(piece.block.stop - piece.block.start for piece in here)
        if found != stop - start:
            raise InputError(f"{self.info.name}: {found} of {start}..{stop} are in this shadow")
        if not here:
            return []
        if self.info.axis or not self.info.shape:
            return [(p.block.start - start, block_view(self.buffer, p)) for p in here]
        flat = self.buffer[here[0].start : here[-1].end].view(DTYPES[self.info.dtype])
        return [(0, flat.view(stop - start, *self.info.shape[1:]))]


class Shadow:
    """Owns its memory until it is dropped.

    Example:

        for name, tensor in receiver.staged.shadow.tensors():
            parameters[name].copy_(tensor)
    """

    def __init__(
        self,
        manifest: Manifest,
        ranges: Ranges | None = None,
        reuse: Shadow | None = None,
        check: Callable[[], None] = lambda: None,
        memory: HostMemory | BorrowedMemory | None = None,
    ) -> None:
        """`ranges`: the blocks to hold; None means all.

        `reuse` gives its memory up when it is of the right size and not borrowed, and must not
        be read any more; what lay in it stays, so that a delta which was
        applied to the old version is the content of the next. `check` is called
        again and again while memory is allocated; what it raises ends that.
        `memory`: where the version lies already. Other memory is claimed: it cannot be borrowed until
        it is released.

        Raises TransferError when memory is short.
        """
        self.manifest = manifest
        self.elsewhere: tuple[str, ...] = ()
        """Paths of the same version's shadows on the engine's further hosts, each for its own host."""
        self.changes: Changes | None = None
        """What alone an engine may load that has loaded their base; None: it loads everything."""
        self.layout = make_layout(manifest.tensors, ranges)
        self.memory: HostMemory | BorrowedMemory
        size = self.layout.num_bytes
        if memory is not None:
            self.memory = memory
        elif reuse is not None and reuse.memory.size == size and reuse.claim():
            self.memory = reuse.memory
        else:
            self.memory = HostMemory(size, check)
            self.claim()

    @property
    def own(self) -> HostMemory | None:
        """None where the memory is another process's."""
        return self.memory if isinstance(self.memory, HostMemory) else None

    def claim(self) -> bool:
        """Whether it may be written to: it is its own, and not borrowed."""
        return self.own is not None and self.own.claim()

    @property
    def buffer(self) -> torch.Tensor:
        """uint8, one dimension, laid out by `layout`."""
        return self.memory.buffer

    @property
    def path(self) -> str:
        """Opens in another process of the same user, while this one lives and holds the shadow."""
        return self.memory.path

    def description(self) -> dict[str, Any]:
        """Plain values: what `open_shadow` needs besides the path, and `open_changes`; no digests, which
        they do not."""
        tensors = tuple(replace(tensor, digests=()) for tensor in self.manifest.tensors)
        return {
            "manifest": manifest_to_json(replace(self.manifest, tensors=tensors)),
            "ranges": [list(ends) for ends in self.layout.ranges],
            "elsewhere": list(self.elsewhere),
            "changes": self.changes.description() if self.changes else None,
        }

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(Hugging Face name, tensor of the full shape), in the manifest's order.

        A tensor whose blocks lie in a row is a view: copy what must outlive
        the shadow. Any other is assembled when its turn comes, and is undefined
        where its blocks are not held. Tensors of which nothing is held are left
        out.
        """
        return _tensors(self.buffer, self.layout)


def open_shadow(
    path: str,
    description: dict[str, Any],
    reader: MemoryReader,
    host: int = 0,
    part: Part | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of another process's shadow, only to be read. `host`: on which of the engine's hosts
    this is; the path is that of the first one.

    Example: dict(open_shadow(shadow.path, shadow.description(), MemoryReader()))["lm_head.weight"]

    `reader` keeps it mapped while its owner has it: the owner's next versions lie there again.
    `part` is asked for each tensor that has to be assembled: it still has the full shape, and is
    undefined outside its part, which alone takes memory.
    Raises TransferError when the owner is gone or the shadow is of another size.
    """
    return _tensors(*_map(path, description, reader, host), part)


def open_blocks(
    path: str, description: dict[str, Any], reader: MemoryReader, host: int = 0
) -> Iterator[StoredTensor]:
    """As `open_shadow`, with every tensor in its blocks, where they lie."""
    buffer, layout = _map(path, description, reader, host)
    for pieces in _by_tensor(layout):
        yield StoredTensor(pieces[0].block.tensor, pieces, buffer)


def _map(
    path: str, description: dict[str, Any], reader: MemoryReader, host: int
) -> tuple[torch.Tensor, BlockLayout]:
    ranges = tuple((first, end) for first, end in description["ranges"])
    layout = make_layout(tensors_of(description), ranges)
    reader.forget_gone()
    path = (path, *description["elsewhere"])[host]
    return reader.map(path, layout.num_bytes), layout


def tensors_of(description: dict[str, Any]) -> tuple[TensorInfo, ...]:
    """Those of a `Shadow.description()`."""
    return manifest_from_json(description["manifest"]).tensors


def _tensors(
    buffer: torch.Tensor, layout: BlockLayout, part: Part | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    for pieces in _by_tensor(layout):
        yield pieces[0].block.tensor.name, _join(buffer, pieces, part)


def _by_tensor(layout: BlockLayout) -> Iterator[list[PlacedBlock]]:
    for _, pieces in groupby(layout.pieces, key=lambda piece: piece.block.tensor.name):
        yield list(pieces)


def _join(buffer: torch.Tensor, pieces: list[PlacedBlock], part: Part | None) -> torch.Tensor:
    tensor, dtype = pieces[0].block.tensor, DTYPES[pieces[0].block.tensor.dtype]
    axis = tensor.axis
    if len(pieces) == tensor.num_blocks and (axis == 0 or not tensor.cuts):
        return buffer[pieces[0].start : pieces[-1].end].view(dtype).view(tensor.shape)
    start, stop = part(tensor) if part else (0, tensor.shape[axis])
    joined = _empty_part(tensor, dtype, stop - start)
    here = [piece for piece in pieces if start <= piece.block.start and piece.block.stop <= stop]
    shape = here[0].block.shape if here else ()
    target = joined.narrow(axis, start, stop - start)
    if (
        here
        and len(here) * shape[axis] == stop - start
        and {p.block.shape for p in here} == {shape}
    ):
        # One copy for all blocks takes half the time of one for each.
        blocks = buffer[here[0].start : here[-1].end].view(dtype).view(len(here), *shape)
        target.unflatten(axis, (len(here), shape[axis])).copy_(blocks.movedim(0, axis))
        return joined
    for piece in here:
        first, length = piece.block.start - start, piece.block.stop - piece.block.start
        target.narrow(axis, first, length).copy_(block_view(buffer, piece))
    return joined


def _empty_part(tensor: TensorInfo, dtype: torch.dtype, length: int) -> torch.Tensor:
    """A tensor of the full shape, with memory for `length` elements along its axis.

    Each row begins so many elements behind the one before. So any `length` of them in a row have a
    place of their own, and what stands beside them is their neighbours'.
    """
    shape = (*tensor.shape[: tensor.axis], length, *tensor.shape[tensor.axis + 1 :])
    strides = torch.empty(shape, device="meta").stride()
    size = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, strides, strict=True))
    memory = torch.empty(max(size, 0), dtype=dtype, device="cpu")
    return memory.as_strided(tensor.shape, strides)
