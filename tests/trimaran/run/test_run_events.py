"""Events of several writers in one stream, of which a replaced one writes no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trimaran.errors import StaleEpochError, UnavailableError
from trimaran.run.events import FencedStream, append_event, is_last, make_event, watch_events
from trimaran.run.runs import EventKind, Run, RunState, events_stream
from trimaran.store import Store, entries, open_store

STREAM = events_stream("run")


def with_store(folder: Path, scenario: Callable[[Store], Awaitable[None]]) -> list[Any]:
    """What stands in the stream afterwards."""

    async def body() -> list[Any]:
        store = await open_store(f"sqlite:{folder / 'store.sqlite'}")
        try:
            await scenario(store)
            return [value async for _, value in entries(store, STREAM)]
        finally:
            await store.close()

    return asyncio.run(asyncio.wait_for(body(), 120))


async def open_stream(store: Any) -> FencedStream:
    return FencedStream(store, STREAM, "run", await store.next_epoch("run"))


def test_who_was_replaced_appends_nothing(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        old = await open_stream(store)
        await old.extend(["a"])
        new = await open_stream(store)
        with pytest.raises(StaleEpochError, match="epoch 1 was replaced by 2"):
            await old.extend(["late"])
        await new.extend(["b"])

    assert with_store(tmp_path, scenario) == ["a", "b"]


class Between:
    """A store in which something happens right before an append, or right after it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: Callable[[], Awaitable[None]] | None = None
        self.lose_answers = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def extend(self, stream: str, values: Sequence[Any], after: int | None = None) -> int:
        if self.before:
            before, self.before = self.before, None
            await before()
        last = await self._store.extend(stream, values, after)
        if self.lose_answers:
            self.lose_answers -= 1
            raise UnavailableError("connection reset")
        return last


def test_who_is_replaced_between_its_look_and_its_append_appends_nothing(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        between = Between(store)
        old = await open_stream(between)
        await old.extend(["a"])

        async def replace() -> None:
            await (await open_stream(store)).extend(["b"])

        between.before = replace
        with pytest.raises(StaleEpochError):
            await old.extend(["late"])

    assert with_store(tmp_path, scenario) == ["a", "b"]


@pytest.mark.parametrize("others", [[], ["launcher"]])
def test_what_was_written_without_an_answer_is_not_written_twice(
    tmp_path: Path, others: list[str]
) -> None:
    async def scenario(store: Store) -> None:
        between = Between(store)
        stream = await open_stream(between)
        await stream.extend(["a"])
        between.lose_answers = 1
        with pytest.raises(UnavailableError):
            await stream.extend(["b", "c"])
        for other in others:
            await store.extend(STREAM, [other])
        await stream.extend(["b", "c"])
        await stream.extend(["d"])

    assert with_store(tmp_path, scenario) == ["a", "b", "c", *others, "d"]


def test_a_watcher_sees_the_events_from_its_cursor_on_as_they_come(tmp_path: Path) -> None:
    run = Run("run", RunState.RUNNING, 1, 2)
    seen: list[tuple[int, str]] = []

    async def scenario(store: Store) -> None:
        async def watch() -> None:
            async for event in watch_events(store, "run", after=1, poll=0.01):
                seen.append((event.sequence, event.text))
                if is_last(event):
                    return

        for text in ("first", "second"):
            await append_event(store, make_event(EventKind.PROCESS, run, text))
        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.05)
        await append_event(store, make_event(EventKind.FINISHED, run, "end"))
        await watching

    with_store(tmp_path, scenario)
    assert seen == [(2, "second"), (3, "end")]
