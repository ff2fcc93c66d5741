"""A run's events from the newest backwards."""

from __future__ import annotations

from pathlib import Path

from services.manager.run_data import past_events
from services.manager.run_data.past_events import read_past
from trimaran.run.runs import EventKind, Run, RunEvent, RunState, event_to_tree, events_stream
from trimaran.store import Store, open_store

RUN = Run("demo", RunState.RUNNING, 0, num_steps=9)


async def _filled(folder: Path, count: int) -> Store:
    """Every tenth event is of a process, the others are of steps."""
    store = await open_store(f"sqlite:{folder}/store.sqlite")
    kinds = [EventKind.STEP if number % 10 else EventKind.PROCESS for number in range(1, count + 1)]
    trees = [event_to_tree(RunEvent(0, kind, RUN)) for kind in kinds]
    await store.extend(events_stream("demo"), trees)
    return store


async def _all(store: Store, kinds: tuple[EventKind, ...], limit: int) -> list[int]:
    found: list[int] = []
    older = 0
    while True:
        past = await read_past(store, "demo", older, kinds, limit)
        found += [event.sequence for event in past.events]
        if not (older := past.older):
            return found


async def test_pages_follow_one_another_without_gap_or_repetition(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(past_events, "CHUNK", 7)
    monkeypatch.setattr(past_events, "MOST_READ", 20)
    store = await _filled(tmp_path, 95)
    assert await _all(store, (), 10) == list(range(95, 0, -1))
    assert await _all(store, (EventKind.PROCESS,), 4) == list(range(90, 0, -10))
    # What is not kept any more ends the list, also within a chunk.
    await store.trim(events_stream("demo"), 33)
    assert await _all(store, (), 10) == list(range(95, 33, -1))
    assert (await read_past(store, "demo", 34, (), 10)).events == ()
    await store.close()
