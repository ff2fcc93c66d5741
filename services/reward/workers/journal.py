"""Where a worker writes each outcome down before it turns to the next batch.

A worker may die at any moment; what it wrote stays. So the journal is the only way in which
outcomes come back, and it shows at which batch a worker died. It is a file in memory, which a
kill cannot leave behind, of JSON lines: the chunk's number, then one line a batch,
    [["value", 1.0, {"part": 0.5}, "42"], ["none"], ["fault", "why"]]      one outcome a sample
    "ValueError: …"                                                  what the function raised
JSON and not pickle: what foreign code had its hands on is checked, never executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from services.reward.outcome import Fault, NotApplicable, Outcome, Value

MAX_REASON = 300
"""Characters of a reason; foreign code words it."""

Entry = tuple[Outcome, ...] | str
"""The outcomes of one batch, or what was raised."""


class JournalWriter:
    """The worker's end.

    Example:
        writer = JournalWriter(reader.path)
        writer.begin(1)                                     # chunk 1
        writer.write(encode_entry([Value(1.0)], size=1))    # its first batch, of one sample
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def begin(self, number: int) -> None:
        os.ftruncate(self._file, 0)
        os.write(self._file, b"%d\n" % number)

    def write(self, line: bytes) -> None:
        while line := line[os.write(self._file, line) :]:
            pass


class JournalReader:
    """The pool's end; owns the file.

    Example:
        reader.read(1, sizes=[1, 1])    # [(Value(1.0),)]: of two batches the first is judged
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("reward-journal", os.MFD_CLOEXEC), "rb", 0)
        self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def read(self, number: int, sizes: Sequence[int]) -> list[Entry] | None:
        """None when the chunk had not begun; `sizes`: samples of each of its batches.

        Raises ValueError for a line that no worker writes.
        """
        self._file.seek(0)
        text = self._file.read()
        first, *lines = text.split(b"\n")[:-1] or [b""]  # behind the last: nothing, or half a line
        if first != b"%d" % number:
            return None
        if len(lines) > len(sizes):
            raise ValueError(f"{len(lines)} lines for {len(sizes)} batches")
        sizes = sizes[: len(lines)]
        trees = json.loads(b"[" + b",".join(lines) + b"]")
        return [decode_entry(tree, size) for tree, size in zip(trees, sizes, strict=True)]

    def close(self) -> None:
        self._file.close()


def encode_entry(outcomes: Sequence[Outcome], size: int) -> bytes:
    """Raises ValueError, TypeError or OverflowError for what is not one outcome a sample."""
    if len(outcomes) != size:
        raise ValueError(f"{len(outcomes)} scores for {size} completions")
    return _line([_encode(outcome) for outcome in outcomes])


def encode_raised(reason: str) -> bytes:
    return _line(reason[:MAX_REASON])


def decode_entry(tree: Any, size: int) -> Entry:
    """Raises ValueError."""
    match tree:
        case str(reason):
            return reason
        case list(rows) if len(rows) == size:
            return tuple(map(_decode, rows))
        case other:
            raise ValueError(f"{other!r:.100} is not {size} outcomes")


def _line(tree: Any) -> bytes:
    return json.dumps(tree).encode() + b"\n"


def _encode(outcome: Outcome) -> list[Any]:
    match outcome:
        case Value(value, parts, prediction):
            numbers = {str(name): float(part) for name, part in parts.items()}
            return ["value", float(value), numbers, prediction]
        case NotApplicable():
            return ["none"]
        case Fault(reason):
            return ["fault", reason[:MAX_REASON]]
        case other:
            raise TypeError(f"{type(other).__name__} is not a score")


def _decode(row: Any) -> Outcome:
    match row:
        case ["value", float(value), dict(parts), str() | None as prediction] if all(
            map(_is_float, parts.values())
        ):
            return Value(value, parts, prediction)
        case ["none"]:
            return NotApplicable()
        case ["fault", str(reason)]:
            return Fault(reason)
    raise ValueError(f"{row!r:.100} is not an outcome")


def _is_float(part: Any) -> bool:
    return isinstance(part, float)
