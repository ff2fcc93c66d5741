"""A run's events from the newest backwards, and its rows of metrics, out of its file or its events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.manager.run_data import metric_rows, past_events
from services.manager.run_data.metric_rows import RowCursor, RowPage, read_events, read_file
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


def row(step: int) -> str:
    return json.dumps({"kind": "step", "step": step, "time": 1.0, "trainer/loss": step / 2}) + "\n"


def read(path: Path, after: RowCursor) -> RowPage:
    page = read_file(path, after)
    assert page is not None
    return page


def steps(page: RowPage) -> list[int]:
    return [one["step"] for one in page.rows]


def test_a_row_is_read_once_and_not_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_file(path, RowCursor()) is None
    path.write_text(row(1) + row(2)[:20])
    first = read(path, RowCursor())
    assert (steps(first), first.is_first, first.share) == ([1], True, 1)
    path.write_text(row(1) + row(2) + row(3))
    second = read(path, first.cursor)
    assert (steps(second), second.is_first) == ([2, 3], False)
    path.write_text(row(1))
    again = read(path, second.cursor)
    assert (steps(again), again.is_first) == ([1], True)


def test_a_long_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_rows, "PAGE_BYTES", 150)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(map(row, range(10))))
    page, found = read(path, RowCursor()), list[int]()
    while page.share < 1:
        found += steps(page)
        page = read(path, page.cursor)
    assert found + steps(page) == list(range(10))


async def test_events_stand_in_for_the_file_of_another_host(tmp_path: Path) -> None:
    run = Run("run", RunState.RUNNING, 0, num_steps=9)

    def event(kind: EventKind, step: int) -> object:
        at = Run("run", RunState.RUNNING, step, num_steps=9)
        return event_to_tree(RunEvent(0, kind, at, {"trainer/loss": 0.5}, "", 7.0))

    store = await open_store(f"sqlite:{tmp_path / 'store.sqlite'}")
    stream = events_stream(run.run_id)
    await store.extend(stream, [event(EventKind.STEP, step) for step in range(1, 5)])
    await store.extend(stream, [event(EventKind.CHECKPOINT, 4)])
    await store.trim(stream, 2)
    page = await read_events(store, "run", RowCursor("file", 1000))
    assert (steps(page), page.is_first) == ([3, 4], True)
    assert page.rows[0] == {"kind": "step", "step": 3, "time": 7.0, "trainer/loss": 0.5}
    await store.extend(stream, [event(EventKind.VALIDATION, 4)])
    following = await read_events(store, "run", page.cursor)
    assert [one["kind"] for one in following.rows] == ["validation"]
    await store.close()
