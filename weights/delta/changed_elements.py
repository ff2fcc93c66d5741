"""Changed elements only: what turns the blocks of a base into those of the next version.

A piece is what became of one block, bit for bit. It is empty where nothing
changed; otherwise its first byte says how to read the rest:

    0  the block's bytes as they are (most of it changed)
    1  count (8 bytes, little-endian), then with zlib: for each changed element
       the number of unchanged ones before it since the last, then for each the
       step from the old to the new bits, both read as integers

Gaps and steps are LEB128 varints; a step is modulo 2^bits and zigzag-coded, so
that a move to a neighbouring float, either way, is one byte.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from trimaran.errors import TransferError
from trimaran.types import Delta, Ranges
from weights.memory.shadow import Shadow
from weights.version.layout import BlockLayout, numbers_of
from weights.version.manifest import ITEM_BYTES, Block

PLAIN, SPARSE = 0, 1
HEAD = struct.Struct("<BQ")
LEVEL = 1
"""zlib's level; higher ones take several times as long for a few per cent."""
MAX_SHARE = 0.5
"""The share of a block's bytes, before compression: above it the plain block is sent."""
VARINT_BYTES = {1: 2, 2: 3, 4: 5, 8: 10}
"""The longest step, by element size."""
GAP_BYTES = 10


@dataclass(frozen=True, slots=True)
class DeltaPieces:
    """What a process has of a delta, by block number.

    Example: DeltaPieces(base.root, {7: encode_piece(old_bits, new_bits)})
    """

    base_root: str
    pieces: dict[int, bytes]

    def describe(self, ranges: Ranges) -> Delta:
        """Blocks without a piece did not change."""
        sizes = (len(self.pieces.get(number, b"")) for number in numbers_of(ranges))
        return Delta(self.base_root, tuple(sizes))


@dataclass(frozen=True, slots=True)
class Change:
    """New bits at some places of a block."""

    positions: np.ndarray | slice
    """Element numbers, row-major; a slice for all of them."""
    values: np.ndarray
    """Unsigned integers of the elements' size."""


@dataclass(frozen=True, slots=True)
class Undo:
    """What a delta overwrote, by block number."""

    changes: dict[int, Change] = field(default_factory=dict)


def apply_pieces(
    shadow: Shadow, pieces: Mapping[int, bytes], check: Callable[[], None] = lambda: None
) -> Undo:
    """Turn the base that lies in `shadow` into the next version, in place.

    The caller has made sure that the base is the right one, and digests the
    changed blocks afterwards: a piece against another base decodes without an error.

    Raises TransferError for a malformed piece or a block that is not held, and
    what `check` raises, which is asked before each piece; the base is then as it was.
    """
    kept = Undo()
    bits = _bits_by_number(shadow.buffer.numpy(), shadow.layout)
    try:
        for number, data in pieces.items():
            check()
            if number not in bits:
                raise TransferError(f"block {number}: has a piece of the delta but is not held")
            block, target = bits[number]
            change = decode_piece(block, data, target)
            kept.changes[number] = Change(change.positions, target[change.positions].copy())
            target[change.positions] = change.values
    except BaseException:
        undo(shadow, kept)
        raise
    return kept


def undo(shadow: Shadow, kept: Undo) -> None:
    """Restore the base, bit for bit."""
    bits = _bits_by_number(shadow.buffer.numpy(), shadow.layout)
    for number, change in kept.changes.items():
        bits[number][1][change.positions] = change.values


def _bits_by_number(buffer: np.ndarray, layout: BlockLayout) -> dict[int, tuple[Block, np.ndarray]]:
    return {
        piece.block.number: (
            piece.block,
            as_bits(buffer[piece.start : piece.end], ITEM_BYTES[piece.block.tensor.dtype]),
        )
        for piece in layout.pieces
    }


def as_bits(data: np.ndarray, item_bytes: int) -> np.ndarray:
    """Bytes as unsigned integers of the elements' size."""
    return data.view(f"<u{item_bytes}")


def encode_piece(old: np.ndarray, new: np.ndarray) -> bytes:
    """The piece of one block, from its old and new bits (`as_bits`); never longer than the block and a byte."""
    positions = np.flatnonzero(old != new)
    if not positions.size:
        return b""
    gaps = np.diff(positions, prepend=-1) - 1
    steps = _zigzag(new[positions] - old[positions])
    packed = _to_varints(gaps.astype(np.uint64)) + _to_varints(steps)
    if len(packed) <= MAX_SHARE * new.nbytes:
        piece = HEAD.pack(SPARSE, positions.size) + zlib.compress(packed, LEVEL)
        if len(piece) <= new.nbytes:
            return piece
    return bytes([PLAIN]) + new.tobytes()


def decode_piece(block: Block, data: bytes, old: np.ndarray) -> Change:
    """Raises TransferError, naming the block, unless `data` is a piece of a block of its size."""
    if not data:
        return Change(np.empty(0, np.int64), np.empty(0, old.dtype))
    if data[0] == PLAIN:
        if len(data) != 1 + old.nbytes:
            raise _malformed(block, f"{len(data) - 1} bytes instead of {old.nbytes}")
        return Change(slice(None), np.frombuffer(data, old.dtype, offset=1))
    if data[0] != SPARSE or len(data) < HEAD.size:
        raise _malformed(block, f"it starts with {data[:1].hex()} and has {len(data)} bytes")
    count = HEAD.unpack_from(data)[1]
    if not 0 < count <= old.size:
        raise _malformed(block, f"{count} changes in {old.size} elements")
    numbers = _from_varints(block, _inflate(block, data[HEAD.size :], count), 2 * count)
    positions = _positions(block, numbers[:count], old.size)
    steps = numbers[count:]
    if steps.max() >> np.uint64(8 * old.itemsize - 1) > 1:
        raise _malformed(block, "a step is too large for the dtype")
    return Change(positions, old[positions] + _unzigzag(steps).astype(old.dtype))


def _positions(block: Block, gaps: np.ndarray, size: int) -> np.ndarray:
    # Each alone first: the sum could leave int64 otherwise.
    if gaps.max() < size:
        positions = np.cumsum(gaps.astype(np.int64) + 1) - 1
        if positions.max() < size:
            return positions
    raise _malformed(block, f"a change lies beyond its {size} elements")


def _inflate(block: Block, data: bytes, count: int) -> np.ndarray:
    longest = count * (GAP_BYTES + VARINT_BYTES[ITEM_BYTES[block.tensor.dtype]])
    stream = zlib.decompressobj()
    try:
        packed = stream.decompress(data, longest + 1)
    except zlib.error as error:
        raise _malformed(block, str(error)) from None
    if not stream.eof or stream.unused_data:
        raise _malformed(block, "its compressed part ends too early or too late")
    return np.frombuffer(packed, np.uint8)


def _malformed(block: Block, what: str) -> TransferError:
    return TransferError(
        f"block {block.number} ({block.tensor.name}): malformed piece of a delta: {what}"
    )


def _zigzag(steps: np.ndarray) -> np.ndarray:
    """0, -1, 1, -2, … (modulo 2^bits) as 0, 1, 2, 3, …: uint64."""
    signed = steps.view(f"<i{steps.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * steps.itemsize - 1))).view(steps.dtype).astype("<u8")


def _unzigzag(codes: np.ndarray) -> np.ndarray:
    """Modulo 2^64, and so modulo any smaller power of two."""
    one = np.uint64(1)
    return (codes >> one) ^ (np.uint64(0) - (codes & one))


def _to_varints(values: np.ndarray) -> bytes:
    """LEB128 of uint64 values: seven bits a byte, lowest first, the top bit set on all but the last."""
    if values.max() < 128:
        return values.astype(np.uint8).tobytes()
    lengths = np.ones(values.size, np.int64)
    for shift in range(7, 64, 7):
        longer = values >> np.uint64(shift) > 0
        if not longer.any():
            break
        lengths += longer
    starts = np.cumsum(lengths) - lengths
    packed = np.empty(lengths.sum(), np.uint8)
    for place in range(lengths.max()):
        here = np.flatnonzero(lengths > place)
        seven = (values[here] >> np.uint64(7 * place)) & np.uint64(127)
        packed[starts[here] + place] = seven + np.uint64(128) * (lengths[here] > place + 1)
    return packed.tobytes()


def _from_varints(block: Block, packed: np.ndarray, count: int) -> np.ndarray:
    """Exactly `count` values, uint64."""
    last = packed < 128
    ends = np.flatnonzero(last)
    if ends.size != count or not last[-1]:
        raise _malformed(block, f"{ends.size} numbers instead of {count}")
    if packed.size == count:
        return packed.astype(np.uint64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > GAP_BYTES:
        raise _malformed(block, "a number is too long")
    values = (packed[starts] & 127).astype(np.uint64)
    for place in range(1, lengths.max()):
        here = np.flatnonzero(lengths > place)
        seven = (packed[starts[here] + place] & 127).astype(np.uint64)
        values[here] |= seven << np.uint64(7 * place)
    return values
