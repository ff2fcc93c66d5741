"""A rank's share of a version: which blocks it has, and how all ranks learn all digests.

Nothing but digests travels between the ranks: one all-reduce of 16 bytes a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from trimaran.errors import InternalError
from trimaran.types import Ranges, TensorInfo
from weights.sending.snapshot import TensorPart
from weights.version.layout import to_ranges
from weights.version.manifest import list_blocks

WORD_BYTES = 4
NUM_WORDS = 4
"""A digest has 16 bytes."""


def blocks_of(tensors: Sequence[TensorInfo], parts: Iterable[TensorPart]) -> Ranges:
    """The blocks that the parts hold. Raises InternalError for a part that is no union of blocks."""
    blocks = list_blocks(tensors)
    starts = {(block.tensor.name, block.start): block.number for block in blocks}
    stops = {(block.tensor.name, block.stop): block.number for block in blocks}
    numbers: list[int] = []
    for part in parts:
        first, last = starts.get((part.name, part.start)), stops.get((part.name, part.stop))
        if first is None or last is None:
            raise InternalError(
                f"{part.name}: elements {part.start} to {part.stop} are no union of its blocks"
            )
        numbers += range(first, last + 1)
    return to_ranges(numbers)


def share_digests(
    own: Mapping[int, str], num_blocks: int, add_up: Callable[[torch.Tensor], torch.Tensor]
) -> dict[int, str]:
    """All digests by block number, when every rank calls with its own.

    `add_up` sums an int32 tensor [num_blocks, 4] over the ranks; a rank writes 0 for what is not
    its own, so that the sum is every digest, as four words each.
    """
    words = torch.zeros(num_blocks, NUM_WORDS, dtype=torch.int32)
    for number, digest in own.items():
        words[number] = torch.frombuffer(bytearray.fromhex(digest), dtype=torch.int32)
    total = add_up(words).numpy().tobytes()
    size = NUM_WORDS * WORD_BYTES
    return {n: total[n * size : (n + 1) * size].hex() for n in range(num_blocks)}
