"""Where blocks lie in one flat buffer, and sets of block numbers. Pure, without torch.

A shard's buffer holds its blocks in the order of their numbers, each block's
elements row-major. The blocks of one tensor follow each other without a gap,
so that a tensor cut along its first axis lies there whole; each tensor starts
on a cache line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trimaran.errors import InputError
from trimaran.types import Ranges, TensorInfo
from weights.version.manifest import Block, list_blocks

ALIGNMENT = 64
"""Bytes."""


def to_ranges(numbers: Iterable[int]) -> Ranges:
    """Example: to_ranges([0, 1, 2, 7, 8]) is ((0, 3), (7, 9))."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = ranges[-1][0], number + 1
        else:
            ranges.append((number, number + 1))
    return tuple(ranges)


def numbers_of(ranges: Ranges) -> Iterator[int]:
    for first, end in ranges:
        yield from range(first, end)


def count(ranges: Ranges) -> int:
    return sum(end - first for first, end in ranges)


def intersect(left: Ranges, right: Ranges) -> Ranges:
    pairs = ((max(a, c), min(b, d)) for a, b in left for c, d in right)
    return tuple((first, end) for first, end in pairs if first < end)


def unite(left: Ranges, right: Ranges) -> Ranges:
    """Example: unite(((0, 2), (7, 9)), ((2, 4),)) is ((0, 4), (7, 9))."""
    ranges: list[tuple[int, int]] = []
    for first, end in sorted((*left, *right)):
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = ranges[-1][0], max(ranges[-1][1], end)
        else:
            ranges.append((first, end))
    return tuple(ranges)


def subtract(left: Ranges, right: Ranges) -> Ranges:
    """What is in `left` and not in `right`."""
    gone = set(numbers_of(right))
    return to_ranges(number for number in numbers_of(left) if number not in gone)


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A block with its place in a buffer: bytes start..end (exclusive)."""

    block: Block
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Which blocks a buffer holds, and where. `make_layout` makes it."""

    pieces: tuple[PlacedBlock, ...]
    num_bytes: int
    """The buffer's length, padding included."""

    @property
    def ranges(self) -> Ranges:
        return to_ranges(piece.block.number for piece in self.pieces)

    def by_number(self) -> dict[int, PlacedBlock]:
        return {piece.block.number: piece for piece in self.pieces}


def make_layout(tensors: Sequence[TensorInfo], ranges: Ranges | None = None) -> BlockLayout:
    """The layout of the blocks in `ranges`; None means all. Raises InputError for a block that does not exist.

    Example:

        info = TensorInfo("w", "F32", (8, 4), axis=0, cuts=(4,))
        make_layout([info]).pieces[1].start  # 64: behind the first block's 64 bytes
    """
    return _make_layout(tuple(tensors), ranges)


@lru_cache(maxsize=8)  # sender, shadow and stream of one version mostly ask for the same one
def _make_layout(tensors: tuple[TensorInfo, ...], ranges: Ranges | None) -> BlockLayout:
    return lay_out(list_blocks(tensors), ranges)


def lay_out(blocks: Sequence[Block], ranges: Ranges | None) -> BlockLayout:
    """As `make_layout`; `blocks`: all of the version, by number."""
    wanted = blocks if ranges is None else [_pick(blocks, n) for n in numbers_of(ranges)]
    pieces: list[PlacedBlock] = []
    end = 0
    for block in wanted:
        same_tensor = pieces and pieces[-1].block.tensor is block.tensor
        start = end if same_tensor else align(end)
        end = start + block.num_bytes
        pieces.append(PlacedBlock(block, start, end))
    return BlockLayout(tuple(pieces), align(end))


def _pick(blocks: Sequence[Block], number: int) -> Block:
    if not 0 <= number < len(blocks):
        raise InputError(f"block {number} does not exist; the manifest has {len(blocks)}")
    return blocks[number]


def align(offset: int) -> int:
    """The next cache line's."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def copy_runs(source: BlockLayout, target: BlockLayout) -> list[tuple[int, int, int]]:
    """(start in source, start in target, bytes) of all blocks that both hold, neighbours joined.

    Only what must be copied: where two layouts are the same it is one run.
    """
    if source == target:
        return [(0, 0, source.num_bytes)] if source.num_bytes else []
    places = target.by_number()
    runs: list[tuple[int, int, int]] = []
    for piece in source.pieces:
        there = places.get(piece.block.number)
        if there is None or piece.start == piece.end:
            continue
        if runs and (sum(runs[-1][::2]), sum(runs[-1][1:])) == (piece.start, there.start):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + piece.end - piece.start)
        else:
            runs.append((piece.start, there.start, piece.end - piece.start))
    return runs


def buckets(total_bytes: int, bucket_bytes: int) -> list[tuple[int, int]]:
    """(start, end) of the pieces in which a flat buffer travels."""
    if bucket_bytes < 1:
        raise InputError(f"bucket_bytes is {bucket_bytes}; it must be at least 1")
    return [
        (start, min(start + bucket_bytes, total_bytes))
        for start in range(0, total_bytes, bucket_bytes)
    ]
