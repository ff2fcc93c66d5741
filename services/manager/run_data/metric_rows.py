"""The rows of a run's metrics, some at a time, as they were written.

The run's file has all of them. Where the controller's folder is on another host, the events have those
of the newest steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trimaran.run.runs import EventKind, events_stream
from trimaran.store import Store, TrimmedError

PAGE_BYTES = 1 << 20
"""Some 400 rows."""
PAGE_EVENTS = 100
KINDS = (EventKind.STEP, EventKind.VALIDATION)


@dataclass(frozen=True, slots=True)
class RowCursor:
    """How far the rows of a run were read: a byte of the file, or the sequence of an event."""

    source: Literal["file", "events"] = "file"
    position: int = 0


@dataclass(frozen=True, slots=True)
class RowPage:
    """Some rows, each with `kind`, `step`, `time` and its metrics.

    Example: RowPage([{"kind": "step", "step": 1, "time": 1.7e9}], RowCursor("file", 44), True)
    """

    rows: Sequence[Mapping[str, Any]] = ()
    cursor: RowCursor = RowCursor()
    """It asks for the rows behind these."""
    is_first: bool = True
    """Nothing comes before these rows. What was read earlier does not count any more."""
    share: float = 1.0
    """How much of all is read with these; 1 at the end."""


def read_file(path: Path, after: RowCursor) -> RowPage | None:
    """None where there is no file. A last row that is still being written is left out."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with file:
        size = os.fstat(file.fileno()).st_size
        start = after.position if after.source == "file" and after.position <= size else 0
        file.seek(start)
        data = file.read(PAGE_BYTES)
    lines = data[: data.rfind(b"\n") + 1]
    end = start + len(lines)
    rows = [json.loads(line) for line in lines.split(b"\n") if line]
    share = end / size if len(data) == PAGE_BYTES else 1.0
    return RowPage(rows, RowCursor("file", end), start == 0, share)


async def read_events(store: Store, run_id: str, after: RowCursor) -> RowPage:
    stream = events_stream(run_id)
    start = after.position if after.source == "events" else 0
    try:
        found = await store.read(stream, start, PAGE_EVENTS)
    except TrimmedError as error:
        found = await store.read(stream, error.through, PAGE_EVENTS)
    rows = [
        {"kind": tree["kind"], "step": tree["run"]["step"], "time": tree["time"], **tree["values"]}
        for _, tree in found
        if tree["kind"] in KINDS
    ]
    end = found[-1][0] if found else start
    share = end / await store.last(stream) if len(found) == PAGE_EVENTS else 1.0
    return RowPage(rows, RowCursor("events", end), start == 0, share)
