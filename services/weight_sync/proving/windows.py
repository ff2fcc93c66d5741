"""Which blocks a read-back takes next, in which portions, and what their digests say. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from trimaran.types import Manifest, Ranges
from weights.version.layout import numbers_of, subtract
from weights.version.manifest import Block, list_blocks, list_digests


def sample_blocks(num_blocks: int, share: float, turn: int) -> Ranges:
    """A window of the blocks; ceil(1 / share) turns in a row cover all of them."""
    num_turns = math.ceil(1 / share)
    turn %= num_turns
    first, end = turn * num_blocks // num_turns, (turn + 1) * num_blocks // num_turns
    return ((first, end),) if first < end else ()


def split_portions(blocks: Sequence[Block], ranges: Ranges, portion_bytes: int) -> Iterator[Ranges]:
    """`blocks`: all of the manifest. Each portion has a block at least, and few bytes more than asked."""
    for first, end in ranges:
        size = 0
        for number in range(first, end):
            size += blocks[number].num_bytes
            if size >= portion_bytes:
                yield ((first, number + 1),)
                first, size = number + 1, 0
        if first < end:
            yield ((first, end),)


@lru_cache(maxsize=16)  # the same for every replica that joins
def portions(manifest: Manifest, ranges: Ranges, num_bytes: int) -> tuple[Ranges, ...]:
    """What `split_portions` gives."""
    return tuple(split_portions(list_blocks(manifest.tensors), ranges, num_bytes))


def find_wrong(
    manifest: Manifest, ranges: Ranges, digests: Sequence[str]
) -> tuple[tuple[int, ...], str]:
    """Numbers of the blocks whose digest is not the manifest's, and what is wrong with the first one; all
    of them where it is not known which digest is whose."""
    numbers = tuple(numbers_of(ranges))
    if len(digests) != len(numbers):
        return numbers, f"{len(digests)} digests were read back for {len(numbers)} blocks"
    expected, wrong = list_digests(manifest), dict[int, str]()
    for number, digest in zip(numbers, digests, strict=True):
        if digest != expected[number]:
            wrong[number] = digest
    if not wrong:
        return (), ""  # once a portion: a list of all blocks takes 57 ms where there are 37,000
    number, digest = next(iter(wrong.items()))
    block = list_blocks(manifest.tensors)[number]
    return tuple(wrong), (
        f"{block.tensor.name} block {block.index} ({block.start}..{block.stop} of axis"
        f" {block.tensor.axis}): loaded {digest} instead of"
        f" {block.tensor.digests[block.index]}"
    )


class Windows:
    """Which window of the blocks each replica reads back next. Pure.

    Example:

        windows = Windows(share=0.125)
        ranges = windows.next("rollout-0", 694, turn=0)  # ((0, 86),)
        windows.read("rollout-0", ((0, 50),))
        windows.next("rollout-0", 694, turn=1)  # ((50, 86),): first what was left
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._turns: dict[str, int] = {}
        self._left: dict[str, Ranges] = {}

    def is_open(self, name: str) -> bool:
        """Whether something of its last window is left."""
        return bool(self._left.get(name))

    def next(self, name: str, num_blocks: int, turn: int) -> Ranges:
        """`turn`: where a replica begins that has read none yet."""
        while num_blocks and not self.is_open(name):
            turn = self._turns.get(name, turn)
            self._left[name] = sample_blocks(num_blocks, self._share, turn)
            self._turns[name] = turn + 1
        return self._left.get(name, ())

    def read(self, name: str, ranges: Ranges) -> None:
        self._left[name] = subtract(self._left.get(name, ()), ranges)
