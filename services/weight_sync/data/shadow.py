"""A receiver's copy of one version's blocks, in memory that an engine's own process can map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch

from services.weight_sync.data.layout import Layout, Piece, make_layout
from services.weight_sync.data.manifest import manifest_from_json, manifest_to_json
from services.weight_sync.data.memory import DTYPES, HostMemory, MemoryReader, block_view
from trimaran.types import Manifest, Ranges


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
    ) -> None:
        """`ranges`: the blocks to hold; None means all.

        `reuse` gives its memory up when it is of the right size, and must not
        be read any more; what lay in it stays, so that a delta which was
        applied to the old version is the content of the next. `check` is called
        again and again while memory is allocated; what it raises ends that.

        Raises TransferError when memory is short.
        """
        self.manifest = manifest
        self.elsewhere: tuple[str, ...] = ()
        """Paths of the same version's shadows on the engine's further hosts, each for its own host."""
        self.layout = make_layout(manifest.tensors, ranges)
        if reuse is not None and reuse.memory.size == self.layout.num_bytes:
            self.memory = reuse.memory
        else:
            self.memory = HostMemory(self.layout.num_bytes, check)

    @property
    def buffer(self) -> torch.Tensor:
        """uint8, one dimension, laid out by `layout`."""
        return self.memory.buffer

    @property
    def path(self) -> str:
        """Opens in another process of the same user, while this one lives and holds the shadow."""
        return self.memory.path

    def description(self) -> dict[str, Any]:
        """Plain values: what `open_shadow` needs besides the path; no digests, which it does not."""
        tensors = tuple(replace(tensor, digests=()) for tensor in self.manifest.tensors)
        return {
            "manifest": manifest_to_json(replace(self.manifest, tensors=tensors)),
            "ranges": [list(ends) for ends in self.layout.ranges],
            "elsewhere": list(self.elsewhere),
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
    path: str, description: dict[str, Any], reader: MemoryReader, host: int = 0
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of another process's shadow, only to be read. `host`: on which of the engine's hosts
    this is; the path is that of the first one.

    Example: dict(open_shadow(shadow.path, shadow.description(), MemoryReader()))["lm_head.weight"]

    `reader` keeps it mapped while its owner has it: the owner's next versions lie there again.
    Raises TransferError when the owner is gone or the shadow is of another size.
    """
    ranges = tuple((first, end) for first, end in description["ranges"])
    layout = make_layout(manifest_from_json(description["manifest"]).tensors, ranges)
    reader.forget_gone()
    path = (path, *description["elsewhere"])[host]
    return _tensors(reader.map(path, layout.num_bytes), layout)


def _tensors(buffer: torch.Tensor, layout: Layout) -> Iterator[tuple[str, torch.Tensor]]:
    for name, pieces in groupby(layout.pieces, key=lambda piece: piece.block.tensor.name):
        yield name, _join(buffer, list(pieces))


def _join(buffer: torch.Tensor, pieces: list[Piece]) -> torch.Tensor:
    tensor, dtype = pieces[0].block.tensor, DTYPES[pieces[0].block.tensor.dtype]
    axis, is_whole = tensor.axis, len(pieces) == tensor.num_blocks
    in_a_row = buffer[pieces[0].start : pieces[-1].end].view(dtype)
    if is_whole and (axis == 0 or not tensor.cuts):
        return in_a_row.view(tensor.shape)
    if is_whole and len({piece.block.shape for piece in pieces}) == 1:
        # One copy for all blocks takes half the time of one for each.
        return in_a_row.view(-1, *pieces[0].block.shape).movedim(0, axis).reshape(tensor.shape)
    joined = torch.empty(tensor.shape, dtype=dtype)
    for piece in pieces:
        start, length = piece.block.start, piece.block.stop - piece.block.start
        joined.narrow(axis, start, length).copy_(block_view(buffer, piece))
    return joined
