"""A run's events from the newest backwards, for who looks at its end first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from trimaran.run.runs import EventKind, RunEvent, event_from_tree, events_stream
from trimaran.store import Store, TrimmedError

CHUNK = 200
"""Events that are read at a time."""
MOST_READ = 4000
"""For one answer, however few of them are of the kinds that are asked for."""


@dataclass(frozen=True, slots=True)
class PastEvents:
    """Example: [event.text for event in past.events]"""

    events: tuple[RunEvent, ...]
    """Newest first."""
    newest: int
    """The sequence number behind which nothing was looked for."""
    older: int
    """Ask for those before this sequence number next; 0: there are none."""


async def read_past(
    store: Store, run_id: str, before: int, kinds: Collection[EventKind], limit: int
) -> PastEvents:
    """`limit` events at most. `before`: a sequence number; 0 for the end. `kinds`: empty for all."""
    stream = events_stream(run_id)
    newest = end = before - 1 if before else await store.last(stream)
    least, gone = max(end - MOST_READ, 0), 0
    found: list[RunEvent] = []
    while end > least:
        start = max(end - CHUNK, least)
        try:
            read = await store.read(stream, start, end - start)
        except TrimmedError as error:
            gone = least = start = min(error.through, end)
            read = await store.read(stream, start, end - start) if start < end else ()
        for sequence, tree in reversed(read):
            if not kinds or tree["kind"] in kinds:
                if len(found) == limit:
                    return PastEvents(tuple(found), newest, sequence + 1)
                found.append(event_from_tree(sequence, tree))
        end = start
    return PastEvents(tuple(found), newest, end + 1 if end > gone else 0)
