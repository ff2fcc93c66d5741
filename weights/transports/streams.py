"""A run of bytes that travels, and where its parts lie in a buffer of another layout."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import torch

from weights.version.layout import BlockLayout, copy_runs

Copy = tuple[int, int, int]
"""(start in the stream, start in the buffer, bytes)."""


class Stream:
    """`num_bytes` bytes in the layout `stream`; those that `buffer` has too lie there.

    Example, the bytes of block 1 alone, out of a whole snapshot:

        stream = Stream(make_layout(tensors, ((1, 2),)), snapshot.buffer, snapshot.layout)
        stream.view(0, stream.num_bytes)
    """

    def __init__(self, stream: BlockLayout, buffer: torch.Tensor, layout: BlockLayout) -> None:
        self.num_bytes = stream.num_bytes
        self.buffer = buffer
        self._runs = copy_runs(stream, layout)
        self._starts = [start for start, _, _ in self._runs]

    def copies(self, start: int, end: int) -> Iterator[Copy]:
        """What to copy for the stream's bytes start..end (exclusive)."""
        for run in range(max(bisect_right(self._starts, start) - 1, 0), len(self._runs)):
            source, target, size = self._runs[run]
            if source >= end:
                return
            first, last = max(source, start), min(source + size, end)
            if first < last:
                yield first, target + first - source, last - first

    def view(self, start: int, end: int) -> torch.Tensor | None:
        """The bytes where they lie; None when the buffer does not hold them in one piece."""
        copies = list(self.copies(start, end))
        if len(copies) != 1 or copies[0][2] != end - start:
            return None
        _, place, size = copies[0]
        return self.buffer[place : place + size]

    def read(self, start: int, end: int, bucket: torch.Tensor) -> None:
        """From the buffer; bytes between pieces stay as they are."""
        for source, place, size in self.copies(start, end):
            bucket[source - start : source - start + size].copy_(self.buffer[place : place + size])

    def write(self, start: int, end: int, bucket: torch.Tensor) -> None:
        """Into the buffer."""
        for source, place, size in self.copies(start, end):
            self.buffer[place : place + size].copy_(bucket[source - start : source - start + size])
