"""Old records, out of the store: a *segment* of them is one compressed payload.

    stream:   … C41 i g s … C82 i g s …      C: a `Compacted` record
    payload:  records-<digest> = gzip of the records from C41 up to the one before C82, one a line

A `Compacted` record names the segment that ends before it. That segment begins with the `Compacted`
record before, which names its own: so from the newest one all can be found, back to the first.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from trimaran.ledger.payloads.files import Payloads
from trimaran.ledger.records import LedgerError, Tree, canonical, chain_hash

PREFIX = "records-"
"""The beginning of an archive's name, before its digest."""
BLOCK_RECORDS = 256
GZIP = 31
"""zlib's word for a gzip stream; without a time in it, so that equal records are equal bytes."""


@dataclass(slots=True)
class ArchiveSegment:
    """Records on their way to the archive, compressed by the block; in haste, since they are mostly
    digests, of which more work makes little less.

    Example:
        segment = ArchiveSegment(first=1)
        segment.add(canonical(tree), tree["hash"])
        list(read_segment(segment.data())) == [tree]
    """

    first: int = 1
    """Sequence number of its first record."""
    num_records: int = 0
    _lines: list[str] = field(default_factory=list[str])
    """Lines of the block that is not yet full."""
    _chunks: list[bytes] = field(default_factory=list[bytes])
    _compressor: Any = field(default_factory=lambda: zlib.compressobj(level=1, wbits=GZIP))

    def __bool__(self) -> bool:
        return self.num_records > 0

    def add(self, content: str, hash: str) -> None:
        """`content`: a record's canonical text, without its hash."""
        self._lines.append(f'{content[:-1]},"hash":"{hash}"}}\n')
        self.num_records += 1
        if len(self._lines) == BLOCK_RECORDS:
            self._compress()

    def data(self) -> bytes:
        """The bytes of the records so far; more can be added afterwards."""
        self._compress()
        return b"".join(self._chunks) + self._compressor.copy().flush()

    def _compress(self) -> None:
        self._chunks.append(self._compressor.compress("".join(self._lines).encode()))
        self._lines.clear()


def read_segment(data: bytes) -> Iterator[Tree]:
    """The records of `ArchiveSegment.data`, in order."""
    decompressor, rest = zlib.decompressobj(wbits=GZIP), b""
    for start in range(0, len(data), 1 << 16):
        *lines, rest = (rest + decompressor.decompress(data[start : start + (1 << 16)])).split(
            b"\n"
        )
        yield from map(json.loads, lines)


async def read_archive(
    payloads: Payloads, compacted: Tree, after: int = 0
) -> AsyncIterator[tuple[int, Tree]]:
    """(sequence number, record) of all records before a `Compacted` one and behind `after`.

    One segment is in memory at a time. Raises LedgerError when a `Compacted` record was altered.
    """
    found: list[tuple[int, str]] = []
    while compacted["kind"] == "compacted":
        if compacted["hash"] != chain_hash(compacted["before"], canonical(compacted)):
            raise LedgerError(
                "the chain breaks at the record that names the archive: it was altered"
            )
        first, archive = compacted["first"], compacted["archive"]
        found.append((first, archive))
        if first <= after + 1:
            break
        compacted = await first_record(payloads, archive)
    for first, archive in reversed(found):
        for sequence, tree in enumerate(await _segment(payloads, archive), start=first):
            if sequence > after:
                yield sequence, tree


async def first_record(payloads: Payloads, archive: str) -> Tree:
    """The first record of the segment of that name."""
    return next(await _segment(payloads, archive))


async def _segment(payloads: Payloads, archive: str) -> Iterator[Tree]:
    return read_segment(await payloads.read(PREFIX + archive))
