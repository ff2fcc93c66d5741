"""Follows a run's events, and how it stands between them, whatever becomes of its processes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from trimaran.errors import UnavailableError
from trimaran.run.events import is_last, watch_events
from trimaran.run.runs import Run, RunEvent, run_from_tree, run_key
from trimaran.store import Store

LOOK_SECONDS = 1.0


class Watcher(Protocol):
    def show(self, event: RunEvent) -> None: ...
    def look(self, run: Run) -> None: ...


async def follow(store: Store, run_id: str, watcher: Watcher, after: int = 0) -> None:
    """Shows every event behind `after` once, in order. Returns when the run has ended or is paused.

    The caller decides how long to wait for events: cancel this.
    """

    async def read() -> Run | None:
        record = await store.get(run_key(run_id))
        return run_from_tree(record.value) if record else None

    async with looking(read, watcher):
        async for event in watch_events(store, run_id, after):
            watcher.show(event)
            if is_last(event):
                return


@asynccontextmanager
async def looking(
    read: Callable[[], Awaitable[Run | None]], watcher: Watcher
) -> AsyncGenerator[None]:
    """Inside, the watcher sees every second how the run stands."""

    async def look() -> None:
        while True:
            with suppress(UnavailableError):  # who follows the events waits for the store as well
                if run := await read():
                    watcher.look(run)
            await asyncio.sleep(LOOK_SECONDS)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
