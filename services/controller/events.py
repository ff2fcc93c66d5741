"""What watchers see of a run: its state and every event since the start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from trimaran.runs import EventKind, Run, RunEvent, RunState


class RunLog:
    """Keeps every event of the run, so that a watcher who comes late sees all of them.

    Example:
        log = RunLog("addition-20261120-120000", num_steps=20)
        log.emit(EventKind.SKIPPED, text="train.jsonl:7: prompt too long")
        async for event in log.watch():  # ends behind the one of kind FINISHED
            print(event.kind, event.text)
    """

    def __init__(self, run_id: str, num_steps: int) -> None:
        self.run = Run(run_id, RunState.STARTING, 0, num_steps)
        self._events: list[RunEvent] = []
        self._num_watchers = 0
        self._changed = asyncio.Event()

    def emit(
        self,
        kind: EventKind,
        values: Mapping[str, float] | None = None,
        text: str = "",
        *,
        step: int | None = None,
        state: RunState | None = None,
        error: str = "",
        held: str | None = None,
    ) -> None:
        self.run = replace(
            self.run,
            step=self.run.step if step is None else step,
            state=state or self.run.state,
            error=error or self.run.error,
            held=self.run.held if held is None else held,
        )
        event = RunEvent(len(self._events) + 1, kind, self.run, values or {}, text, time.time())
        self._events.append(event)
        self._wake()

    async def watch(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """Every event with a sequence number above `after`, up to the one of kind FINISHED."""
        self._num_watchers += 1
        try:
            while True:
                changed = self._changed
                for event in self._events[after:]:
                    yield event
                    after = event.sequence
                    if event.kind is EventKind.FINISHED:
                        return
                await changed.wait()
        finally:
            self._num_watchers -= 1
            self._wake()

    async def wait_for_watchers(self, timeout: float) -> None:
        """After the last event: until every watcher has read it, `timeout` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                while self._num_watchers:
                    await self._changed.wait()
        except TimeoutError:
            pass  # a watcher that has gone away need not hold the run

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
