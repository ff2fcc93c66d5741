"""Finds processes that are frozen: alive, and silent. A frozen one is killed, and so becomes a death.

A stopped process, a deadlock and an event loop that is held up look the same from outside: gRPC
health is not answered. Only who has answered once since its start is judged, because a process that
loads a model answers nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from trimaran import rpc
from trimaran.launch.children import Child
from trimaran.launch.local import Processes
from trimaran.trust import Trust

ASK_SECONDS = 5.0
"""Between two questions to one process, and for its answer."""


class HealthWatch:
    """Asks every process for its health, for ever.

    Example:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(HealthWatch(processes, 60.0, print, run.trust).run())
    """

    def __init__(
        self,
        processes: Processes,
        timeout: float,
        note: Callable[[str], None],
        trust: Trust,
        pause: float = ASK_SECONDS,
    ) -> None:
        """`timeout`: `frozen_timeout`, seconds of silence after which a process is killed."""
        self._processes, self._timeout, self._note = processes, timeout, note
        self._trust = trust
        self._pause = min(pause, timeout / 4)
        self._heard: dict[int, float] = {}
        """When each process that has ever answered last did, by process id."""

    async def run(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.gather(*map(self._ask, self._processes.alive.values()))
            await asyncio.sleep(self._pause)
            now = time.monotonic()
            if now - before > 2 * self._pause + self._timeout / 2:
                # We stood still ourselves: nobody could be heard.
                self._heard = dict.fromkeys(self._heard, now)
            self._judge(now)

    async def _ask(self, child: Child) -> None:
        address = child.service.address
        if address and await rpc.is_serving(address, self._pause, self._trust):
            self._heard[child.process.pid] = time.monotonic()

    def _judge(self, now: float) -> None:
        alive = self._processes.alive.values()
        self._heard = {
            pid: self._heard[pid] for child in alive if (pid := child.process.pid) in self._heard
        }
        for child in alive:
            silence = now - self._heard.get(child.process.pid, now)
            if silence > self._timeout:
                name = child.service.name
                self._note(
                    f"{name} is frozen: it has not answered for {silence:.0f} s (frozen_timeout is"
                    f" {self._timeout:g} s); it is killed"
                )
                self._processes.kill(name)
