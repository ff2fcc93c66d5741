"""A sender's copy of the blocks that are its share of one version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch

from trimaran.errors import InputError
from trimaran.host.device import EXACT_KINDS
from trimaran.types import Manifest, Ranges, TensorInfo
from weights.delta.changed_elements import DeltaPieces, as_bits, encode_piece
from weights.memory.host_memory import DTYPE_NAMES, HostMemory, block_bytes, block_view
from weights.version.digest import INTEGERS, digest_tensor
from weights.version.layout import BlockLayout, PlacedBlock, make_layout
from weights.version.manifest import (
    Block,
    build_manifest,
    check_tensors,
    list_blocks,
    list_digests,
    same_tensors,
)

Digests = dict[int, str]
"""By block number."""
DEVICE_BYTES = 32 * 2**20
"""The bytes of a block that are copied on the device at a time before they leave it."""
DIGEST_THREADS = 4
"""Beside the one that copies."""


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Elements start..stop (exclusive), along its axis, of the Hugging Face tensor `name`.

    A whole tensor is 0..shape[axis]; a scalar 0..1.

    Example: TensorPart("model.norm.weight", 0, 576, weight) where `weight` has shape [576]
    """

    name: str
    start: int
    stop: int
    tensor: torch.Tensor
    is_frozen: bool = False
    """It has the same values in every version."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Made by `take_snapshot`."""

    manifest: Manifest
    """The whole version's, also where this rank holds a share."""
    layout: BlockLayout
    """Where the blocks lie that it holds."""
    memory: HostMemory
    delta: DeltaPieces | None = None
    """From the version whose memory it took over, for the blocks that it holds."""

    @property
    def buffer(self) -> torch.Tensor:
        """uint8, one dimension, on the host, laid out by `layout`."""
        return self.memory.buffer

    @property
    def path(self) -> str:
        """Maps in another process on this machine, while this one holds the snapshot."""
        return self.memory.path


def take_snapshot(
    tensors: Sequence[TensorInfo],
    parts: Iterable[TensorPart],
    ranges: Ranges,
    exchange: Callable[[Digests], Digests] = lambda digests: digests,
    reuse: Snapshot | None = None,
    keep_delta: bool = False,
) -> Snapshot:
    """Copy the blocks in `ranges` out of `parts`, write -0 as +0, digest.

    `tensors`: of the whole version, cut (`grid.cut_tensors`), without digests.
    `parts` may be larger than blocks and may hold others; they are taken one by
    one. `exchange` gives the digests of all blocks for those of this rank.
    `reuse` gives its memory up and must not be sent any more, also when this
    raises; with `keep_delta` its content is the base of the delta. What is frozen
    stays in it, with its digests.

    Raises InputError for a part that is not of the version or cuts a block, for
    a block that no part holds, and for a `reuse` of other tensors or blocks;
    TransferError when memory is short.

    Example:

        info = TensorInfo("w", "F32", (8, 4), axis=0, cuts=(4,))  # two blocks
        part = TensorPart("w", 0, 8, torch.ones(8, 4))
        snapshot = take_snapshot([info], [part], ((0, 2),))
        snapshot.manifest.root  # 32 hex digits
    """
    check_tensors(tensors)
    layout = make_layout(tensors, ranges)
    memory = _memory(tensors, layout, reuse)
    digests: dict[int, Future[str]] = {}
    pieces: dict[int, bytes] = {}
    before = list_digests(reuse.manifest) if reuse else ()
    own: Digests = {}
    # A block is digested while the next ones are copied.
    with torch.no_grad(), ThreadPoolExecutor(DIGEST_THREADS, "snapshot-digests") as threads:
        for piece, part in _pair(layout, parts):
            number, target = piece.block.number, block_view(memory.buffer, piece)
            if part.is_frozen and before:
                own[number] = before[number]
                continue
            source = _slice(part, piece.block)
            if reuse is not None and keep_delta:
                if changes := _write_changes(target, source):
                    pieces[number] = changes
            else:
                _write(target, source)
            written = block_bytes(memory.buffer, piece)
            digests[number] = threads.submit(digest_tensor, written)
    own |= {number: digest.result() for number, digest in digests.items()}
    manifest = build_manifest(_with_digests(tensors, exchange(own)))
    delta = DeltaPieces(reuse.manifest.root, pieces) if reuse is not None and keep_delta else None
    return Snapshot(manifest, layout, memory, delta)


def _memory(
    tensors: Sequence[TensorInfo], layout: BlockLayout, reuse: Snapshot | None
) -> HostMemory:
    if reuse is None:
        return HostMemory(layout.num_bytes)
    if not same_tensors(tensors, reuse.manifest.tensors) or layout.ranges != reuse.layout.ranges:
        raise InputError("the tensors or blocks differ from those of the snapshot to reuse")
    return reuse.memory


def _pair(
    layout: BlockLayout, parts: Iterable[TensorPart]
) -> Iterator[tuple[PlacedBlock, TensorPart]]:
    """Each held block with the first part that has it."""
    waiting: dict[str, list[PlacedBlock]] = {}
    for piece in layout.pieces:
        waiting.setdefault(piece.block.tensor.name, []).append(piece)
    for part in parts:
        pieces = waiting.pop(part.name, [])
        if pieces:
            _check_part(part, pieces[0].block.tensor)
        here = [piece for piece in pieces if _covers(part, piece.block)]
        for piece in here:
            yield piece, part
        if len(here) < len(pieces):
            waiting[part.name] = [piece for piece in pieces if piece not in here]
    for name, pieces in waiting.items():
        starts = ", ".join(str(piece.block.start) for piece in pieces)
        raise InputError(f"{name}: no part holds the block(s) that start at {starts}")


def _check_part(part: TensorPart, tensor: TensorInfo) -> None:
    shape = (
        (*tensor.shape[: tensor.axis], part.stop - part.start, *tensor.shape[tensor.axis + 1 :])
        if tensor.shape
        else ()
    )
    found = DTYPE_NAMES.get(part.tensor.dtype, part.tensor.dtype), tuple(part.tensor.shape)
    if found != (tensor.dtype, shape):
        raise InputError(
            f"{part.name} {part.start}..{part.stop}: a part of {tensor.dtype} {tensor.shape}"
            f" along axis {tensor.axis} should be {tensor.dtype} {shape}, not {found[0]} {found[1]}"
        )


def _covers(part: TensorPart, block: Block) -> bool:
    return part.start <= block.start and block.stop <= part.stop


def _slice(part: TensorPart, block: Block) -> torch.Tensor:
    if not block.tensor.shape:
        return part.tensor
    return part.tensor.narrow(block.tensor.axis, block.start - part.start, block.stop - block.start)


def _write(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy with -0 as +0, in one pass over the host's memory where it can be."""
    if not source.is_floating_point():
        target.copy_(source)
    elif source.device == target.device:
        torch.add(source, 0, out=target)  # -0 + 0 is +0, and every other number stays
    elif source.device.type in EXACT_KINDS:
        _write_from_device(target, source)
    else:
        target.copy_(source).add_(0)


def _write_from_device(target: torch.Tensor, source: torch.Tensor) -> None:
    """In parts, because a trainer's device may have little room left."""
    target, source = torch.atleast_1d(target), torch.atleast_1d(source)
    num_rows = max(DEVICE_BYTES * len(source) // max(source.nbytes, 1), 1)
    for there, here in zip(target.split(num_rows), source.split(num_rows), strict=True):
        there.copy_(with_plus_zero(here))


def with_plus_zero(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with +0 for -0 and the bits of all other numbers, where the tensor lies.

    On the bits, because arithmetic on a device may flush denormals and quiet NaNs.
    """
    bits = tensor.view(INTEGERS[tensor.element_size()])
    return bits.masked_fill(bits == torch.iinfo(bits.dtype).min, 0).view(tensor.dtype)


def _write_changes(target: torch.Tensor, source: torch.Tensor) -> bytes:
    """The same, and the changes as a piece of a delta."""
    fresh = torch.empty_like(target)
    _write(fresh, source)
    piece = encode_piece(*(_bits(tensor) for tensor in (target, fresh)))
    target.copy_(fresh)
    return piece


def _bits(tensor: torch.Tensor) -> np.ndarray:
    return as_bits(tensor.view(-1).view(torch.uint8).numpy(), tensor.element_size())


def _with_digests(tensors: Sequence[TensorInfo], digests: Digests) -> Iterator[TensorInfo]:
    blocks = list_blocks(tensors)
    if missing := next((block for block in blocks if block.number not in digests), None):
        raise InputError(
            f"{missing.tensor.name}: no rank has digested its block {missing.index};"
            " the shares of all ranks must cover the version"
        )
    for tensor, own in groupby(blocks, key=lambda block: block.tensor):
        yield replace(tensor, digests=tuple(digests[block.number] for block in own))
