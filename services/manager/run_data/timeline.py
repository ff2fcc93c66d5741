"""What the processes of a run did when: a window of timeline.jsonl, found in a file of any length.

Rows stand there in the order in which they ended, so a window is found by halving.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

CHUNK = 1 << 14
MOST_BYTES = 2 << 20
"""Of one window, about 20,000 rows: of a longer one its end."""


class Span(NamedTuple):
    """Example: Span("trainer-0", "training", 1763640000.5, 1763640012.0, 7)"""

    process: str
    activity: str
    start: float
    """Unix seconds, as the next one."""
    end: float
    step: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Example: [span.process for span in timeline.spans if span.activity == "training"]"""

    spans: tuple[Span, ...] = ()
    start: float = 0.0
    """Unix seconds: the window, from here to `end`."""
    end: float = 0.0
    first: float = 0.0
    """When the run's first span began."""


def read_timeline(path: Path, seconds: float, until: float) -> Timeline:
    """`seconds`: the window's length; 0 for all before `until`. `until`: unix seconds; 0 for the last row's
    end. A span that goes on behind the window for longer than the window is may be left out."""
    if not path.is_file():
        return Timeline()
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        first = min((row.start for row in _rows(file, 0, min(CHUNK, size))), default=None)
        if first is None:
            return Timeline()
        end = until or max(row.end for row in _rows(file, max(size - CHUNK, 0), size))
        start = end - seconds if seconds else first
        begin = _find(file, size, start)
        stop = min(_find(file, size, 2 * end - start) + CHUNK, size)
        begin = max(begin, stop - MOST_BYTES)
        spans = [row for row in _rows(file, begin, stop) if row.end >= start and row.start <= end]
    if stop - begin == MOST_BYTES and spans:
        start = max(start, spans[0].end)
    return Timeline(tuple(spans), start, max(end, start), first)


def _find(file: BinaryIO, size: int, end: float) -> int:
    """A position less than CHUNK before the first row that ends at `end` or later."""
    low, high = 0, size
    while high - low > CHUNK:
        middle = (low + high) // 2
        lines = _lines(file, middle, min(middle + CHUNK, size))
        if lines and json.loads(lines[0])["end"] < end:
            low = middle
        else:
            high = middle
    return low


def _rows(file: BinaryIO, begin: int, stop: int) -> Iterator[Span]:
    lines = b",".join(_lines(file, begin, stop))
    for row in json.loads(b"[%b]" % lines):  # at once, in half the time
        yield Span(row["process"], row["activity"], row["start"], row["end"], row["step"])


def _lines(file: BinaryIO, begin: int, stop: int) -> list[bytes]:
    """The whole ones from `begin` to `stop`."""
    file.seek(begin)
    lines = file.read(stop - begin).split(b"\n")[:-1]
    return lines[1:] if begin else lines
