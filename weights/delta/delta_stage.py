"""A stage by delta: pieces are fetched beside the base, then applied to it, and verified.

They travel without gaps, in the order of their blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

from trimaran.errors import OutOfOrderError, TransferError
from trimaran.types import Delta, Manifest, Ranges, Source, TensorInfo
from weights.delta.changed_elements import DeltaPieces, Undo, apply_pieces, undo
from weights.delta.delta_changes import collect_changes
from weights.memory.free_memory import require_free_memory
from weights.memory.shadow import Shadow
from weights.transports.arrival import Intake, Verifier
from weights.transports.carrier import describe
from weights.version.layout import BlockLayout, PlacedBlock, lay_out, numbers_of
from weights.version.manifest import Block, list_blocks, list_digests, same_tensors


def delta_layout(tensors: Sequence[TensorInfo], ranges: Ranges, delta: Delta) -> BlockLayout:
    """Raises TransferError unless the delta names one size a block."""
    return _delta_layout(list_blocks(tensors), ranges, delta)


def _delta_layout(blocks: Sequence[Block], ranges: Ranges, delta: Delta) -> BlockLayout:
    numbers = list(numbers_of(ranges))
    if len(numbers) != len(delta.sizes) or min(delta.sizes, default=0) < 0:
        raise TransferError(f"a delta names {len(delta.sizes)} sizes for {len(numbers)} blocks")
    return _in_a_row(blocks, dict(zip(numbers, delta.sizes, strict=True)))


def streams_of(tensors: Sequence[TensorInfo], sources: Sequence[Source]) -> list[BlockLayout]:
    """What travels from each source.

    Raises InputError for a block that does not exist, and TransferError as `delta_layout`.
    """
    blocks = list_blocks(tensors)
    return [
        lay_out(blocks, source.blocks)
        if (delta := source.delta) is None
        else _delta_layout(blocks, source.blocks, delta)
        for source in sources
    ]


def join_deltas(
    tensors: Sequence[TensorInfo], streams: Sequence[BlockLayout], wanted: Ranges
) -> BlockLayout:
    """One buffer for the pieces of the wanted blocks, from all sources."""
    sizes = {
        piece.block.number: piece.end - piece.start for stream in streams for piece in stream.pieces
    }
    return _in_a_row(list_blocks(tensors), {number: sizes[number] for number in numbers_of(wanted)})


def _in_a_row(blocks: Sequence[Block], sizes: dict[int, int]) -> BlockLayout:
    ends = list(accumulate(sizes.values()))
    pieces = [
        PlacedBlock(blocks[number], end - size, end)
        for (number, size), end in zip(sizes.items(), ends, strict=True)
    ]
    return BlockLayout(tuple(pieces), ends[-1] if ends else 0)


def check_base(intake: Intake, held_root: str, held: Manifest | None) -> None:
    """Raises OutOfOrderError unless every source's delta is against the held version.

    TransferError when sources mix deltas with blocks, or when a block that the
    deltas leave alone differs between the two manifests.
    """
    for delta in (source.delta for source, _ in intake.parts):
        if delta is None:
            raise TransferError(
                "some sources bring a delta and others blocks; plan one or the other"
            )
        if held is None or delta.base_root != held_root:
            raise OutOfOrderError(
                f"the delta is against {delta.base_root}, this replica holds"
                f" {held_root or 'nothing'}; stage the full version"
            )
    if held is None or not same_tensors(held.tensors, intake.manifest.tensors):
        raise TransferError("the delta's manifest names other tensors than the held version's")
    blocks, old, new = (
        list_blocks(intake.manifest.tensors),
        list_digests(held),
        list_digests(intake.manifest),
    )
    changed = {
        piece.block.number
        for _, stream in intake.parts
        for piece in stream.pieces
        if piece.end > piece.start
    }
    for number in numbers_of(intake.wanted):
        if number not in changed and old[number] != new[number]:
            raise TransferError(
                f"{describe(blocks[number])} differs between the versions,"
                " but the delta has no piece for it; stage the full version"
            )


def fetch_pieces(intake: Intake) -> tuple[BlockLayout, DeltaPieces]:
    """The pieces of the wanted blocks, in memory of their own."""
    streams = [stream for _, stream in intake.parts]
    layout = join_deltas(intake.manifest.tensors, streams, intake.wanted)
    require_free_memory(
        2 * layout.num_bytes, "a delta's pieces"
    )  # the buffer, and the pieces cut from it
    buffer = torch.empty(layout.num_bytes, dtype=torch.uint8)
    intake.fill(buffer, layout, lambda number: None)
    view = buffer.numpy().data
    pieces = {
        piece.block.number: bytes(view[piece.start : piece.end])
        for piece in layout.pieces
        if piece.end > piece.start
    }
    base_roots = {delta.base_root for source, _ in intake.parts if (delta := source.delta)}
    return layout, DeltaPieces(base_roots.pop(), pieces)


def apply_verified(shadow: Shadow, delta: DeltaPieces, check: Callable[[], None]) -> Undo:
    """`shadow` has the next version's manifest over the base's memory. It gets its `changes`.

    Raises TransferError, naming the block, when a piece is malformed or makes
    wrong bytes, and what `check` raises, which is asked before each block; the
    memory is then as it was.
    """
    overwritten = apply_pieces(shadow, delta.pieces, check)
    verifier = Verifier(shadow.manifest, shadow.buffer, shadow.layout)
    try:
        for number in delta.pieces:
            check()
            verifier.check(number)
        shadow.changes = collect_changes(shadow, overwritten, delta.base_root)
    except BaseException:
        undo(shadow, overwritten)
        raise
    return overwritten
