"""Follows a run's events, across breaks of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from trimaran.clients import AsyncRunClient
from trimaran.errors import DeadlineError, UnavailableError
from trimaran.runs import EventKind, RunEvent, RunState

RETRY_SECONDS = 0.3


class Watcher(Protocol):
    def show(self, event: RunEvent) -> None: ...


async def follow(address: str, watcher: Watcher, on_running: Callable[[], None]) -> None:
    """Shows every event once, in order. Returns when the run has ended.

    The caller decides how long to wait for a controller that does not answer: cancel this.
    """
    last = 0
    async with AsyncRunClient(address) as client:
        while True:
            try:
                async for event in client.watch_run("", last):
                    last = event.sequence
                    if event.run.state is not RunState.STARTING:
                        on_running()
                    watcher.show(event)
                    if event.kind is EventKind.FINISHED:
                        return
            except (UnavailableError, DeadlineError):
                pass  # not up yet, or the stream broke: ask again behind the last event
            await asyncio.sleep(RETRY_SECONDS)
