"""The controller's files on a host that may be lost: metrics come back from the run's events, and what
people read is kept at the run's place."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from trimaran.places import Place
from trimaran.runs import EventKind, RunEvent, event_from_tree, events_stream
from trimaran.store import Store, entries
from trimaran.telemetry import MetricsWriter

KEPT = ("summary.json", "metrics.jsonl", "timeline.jsonl", "*.png", "tensorboard/*")
"""Beside the samples, which are kept as they come."""
ROWS: dict[EventKind, Literal["step", "validation"]] = {
    EventKind.STEP: "step",
    EventKind.VALIDATION: "validation",
}


async def bring_back_metrics(store: Store, run_id: str, metrics: MetricsWriter) -> None:
    """For a controller whose folder holds no rows, because another host's controller wrote them."""
    rows: dict[tuple[Literal["step", "validation"], int], RunEvent] = {}
    async for sequence, tree in entries(store, events_stream(run_id)):
        event = event_from_tree(sequence, tree)
        kind = ROWS.get(event.kind)
        if kind:
            rows.setdefault((kind, event.run.step), event)
    # All or none: where the store fails on the way, the next start tries again.
    for (kind, step), event in rows.items():
        metrics.write(kind, step, event.values, at=event.time)


def keep_files(run_folder: Path, place: Place) -> None:
    """At the run's end. Raises UnavailableError; it may be done again."""
    for pattern in KEPT:
        for path in sorted(run_folder.glob(pattern)):
            place.upload(path, path.relative_to(run_folder).as_posix())
