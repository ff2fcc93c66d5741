"""The controller's files on a host that may be lost: metrics come back from the run's events, and what
people read is kept at the run's place."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from trimaran.host.places import Place
from trimaran.run.runs import EventKind, RunEvent, event_from_tree, events_stream
from trimaran.store import Store, kept_entries
from trimaran.telemetry.run_files import MetricsWriter

logger = logging.getLogger(__name__)

KEPT = ("summary.json", "metrics.jsonl", "timeline.jsonl", "tensorboard/*")
"""Beside the samples, which are kept as they come."""
ROWS: dict[EventKind, Literal["step", "validation"]] = {
    EventKind.STEP: "step",
    EventKind.VALIDATION: "validation",
}


async def bring_back_metrics(store: Store, run_id: str, metrics: MetricsWriter) -> None:
    """For a controller whose folder holds no rows, because another host's controller wrote them.

    Rows whose events are not kept any more stay away; the log says so.
    """
    first: int | None = None
    rows: dict[tuple[Literal["step", "validation"], int], RunEvent] = {}
    async for sequence, tree in kept_entries(store, events_stream(run_id)):
        first = first or sequence
        event = event_from_tree(sequence, tree)
        kind = ROWS.get(event.kind)
        if kind:
            rows.setdefault((kind, event.run.step), event)
    # All or none: where the store fails on the way, the next start tries again.
    if first and first > 1:
        logger.warning(
            "metrics.jsonl begins at step %d: it is made again from the run's events, and those before"
            " event %d are not kept any more; a copy of the lost file has all rows",
            min((step for _, step in rows), default=0),
            first,
        )
    for (kind, step), event in rows.items():
        metrics.write(kind, step, event.values, at=event.time)


def keep_files(run_folder: Path, place: Place) -> None:
    """At the run's end. Raises UnavailableError; it may be done again."""
    for pattern in KEPT:
        for path in sorted(run_folder.glob(pattern)):
            place.upload(path, path.relative_to(run_folder).as_posix())
