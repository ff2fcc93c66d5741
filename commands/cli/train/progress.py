"""Follows a run's events in its store, whatever becomes of the run's processes meanwhile."""

from __future__ import annotations

from typing import Protocol

from trimaran.run.events import is_last, watch_events
from trimaran.run.runs import RunEvent
from trimaran.store import Store


class Watcher(Protocol):
    def show(self, event: RunEvent) -> None: ...


async def follow(store: Store, run_id: str, watcher: Watcher, after: int = 0) -> None:
    """Shows every event behind `after` once, in order. Returns when the run has ended or is paused.

    The caller decides how long to wait for events: cancel this.
    """
    async for event in watch_events(store, run_id, after):
        watcher.show(event)
        if is_last(event):
            return
