"""How the pieces of a delta follow each other, without gaps, in the order of their blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from services.weight_sync.data.layout import Layout, Piece, make_layout, numbers_of
from services.weight_sync.data.manifest import list_blocks
from services.weight_sync.data.sources import delta_of
from trimaran.errors import TransferError
from trimaran.types import Delta, Ranges, Source, TensorInfo


def delta_layout(tensors: Sequence[TensorInfo], ranges: Ranges, delta: Delta) -> Layout:
    """Raises TransferError unless the delta names one size a block."""
    numbers = list(numbers_of(ranges))
    if len(numbers) != len(delta.sizes) or min(delta.sizes, default=0) < 0:
        raise TransferError(f"a delta names {len(delta.sizes)} sizes for {len(numbers)} blocks")
    return _in_a_row(tensors, dict(zip(numbers, delta.sizes, strict=True)))


def stream_of(tensors: Sequence[TensorInfo], source: Source) -> Layout:
    """What travels from one source.

    Raises InputError for a block that does not exist, and TransferError as `delta_layout`.
    """
    layout, delta = make_layout(tensors, source.blocks), delta_of(source)
    return layout if delta is None else delta_layout(tensors, source.blocks, delta)


def join_deltas(tensors: Sequence[TensorInfo], streams: Sequence[Layout], wanted: Ranges) -> Layout:
    """One buffer for the pieces of the wanted blocks, from all sources."""
    sizes = {
        piece.block.number: piece.end - piece.start for stream in streams for piece in stream.pieces
    }
    return _in_a_row(tensors, {number: sizes[number] for number in numbers_of(wanted)})


def _in_a_row(tensors: Sequence[TensorInfo], sizes: dict[int, int]) -> Layout:
    blocks = list_blocks(tensors)
    ends = list(accumulate(sizes.values()))
    pieces = [
        Piece(blocks[number], end - size, end)
        for (number, size), end in zip(sizes.items(), ends, strict=True)
    ]
    return Layout(tuple(pieces), ends[-1] if ends else 0)
