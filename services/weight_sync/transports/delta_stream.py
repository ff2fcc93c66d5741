"""How the pieces of a delta follow each other, without gaps, in the order of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from services.weight_sync.data.layout import Layout, Piece, lay_out, numbers_of
from services.weight_sync.data.manifest import Block, list_blocks
from services.weight_sync.data.sources import delta_of
from trimaran.errors import TransferError
from trimaran.types import Delta, Ranges, Source, TensorInfo


def delta_layout(tensors: Sequence[TensorInfo], ranges: Ranges, delta: Delta) -> Layout:
    """Raises TransferError unless the delta names one size a block."""
    return _delta_layout(list_blocks(tensors), ranges, delta)


def _delta_layout(blocks: Sequence[Block], ranges: Ranges, delta: Delta) -> Layout:
    numbers = list(numbers_of(ranges))
    if len(numbers) != len(delta.sizes) or min(delta.sizes, default=0) < 0:
        raise TransferError(f"a delta names {len(delta.sizes)} sizes for {len(numbers)} blocks")
    return _in_a_row(blocks, dict(zip(numbers, delta.sizes, strict=True)))


def streams_of(tensors: Sequence[TensorInfo], sources: Sequence[Source]) -> list[Layout]:
    """What travels from each source.

    Raises InputError for a block that does not exist, and TransferError as `delta_layout`.
    """
    blocks = list_blocks(tensors)
    return [
        lay_out(blocks, source.blocks)
        if (delta := delta_of(source)) is None
        else _delta_layout(blocks, source.blocks, delta)
        for source in sources
    ]


def join_deltas(tensors: Sequence[TensorInfo], streams: Sequence[Layout], wanted: Ranges) -> Layout:
    """One buffer for the pieces of the wanted blocks, from all sources."""
    sizes = {
        piece.block.number: piece.end - piece.start for stream in streams for piece in stream.pieces
    }
    return _in_a_row(list_blocks(tensors), {number: sizes[number] for number in numbers_of(wanted)})


def _in_a_row(blocks: Sequence[Block], sizes: dict[int, int]) -> Layout:
    ends = list(accumulate(sizes.values()))
    pieces = [
        Piece(blocks[number], end - size, end)
        for (number, size), end in zip(sizes.items(), ends, strict=True)
    ]
    return Layout(tuple(pieces), ends[-1] if ends else 0)
