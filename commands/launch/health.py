"""Finds processes that are frozen: alive, and silent. A frozen one is killed, and so becomes a death;
one that an engine has started is asked to end, and its engine kills it where it cannot.

A stopped process, a deadlock and an event loop that is held up look the same from outside: gRPC
health is not answered. A process that loads a model does not answer either. So who has not answered
yet is silent only while it is stopped (SIGSTOP), or once it has had `start_timeout` for its start. Its
start does not count while another process has its devices (`trimaran.run.device_turns`).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from commands.launch.children import Child
from commands.launch.processes import Processes
from trimaran.run.network import split
from trimaran.trust.access import Trust
from trimaran.wire import rpc

ASK_SECONDS = 5.0
"""Between two questions to one process, and for its answer."""


class HealthWatch:
    """Asks every process for its health, for ever.

    Example:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(HealthWatch(processes, 60.0, 300.0, print, run.trust).run())
    """

    def __init__(
        self,
        processes: Processes,
        timeout: float,
        start_timeout: float,
        note: Callable[[str], None],
        trust: Trust,
        pause: float = ASK_SECONDS,
        ask: Callable[[str, float, Trust], Awaitable[bool]] = rpc.is_serving,
        waits: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """`timeout`: `frozen_timeout`, seconds of silence after which a process is killed. `waits`: whether
        the process of this name waits for what another one has."""
        self._processes, self._timeout, self._note = processes, timeout, note
        self._start_timeout, self._trust = start_timeout, trust
        self._pause, self._ask, self._waits = min(pause, timeout / 4), ask, waits
        self._known: set[str] = set()
        """Incarnations of those that have answered."""
        self._silences: dict[str, float] = {}
        """Seconds for which each has been silent while we were listening, by incarnation."""
        self._waited: defaultdict[str, float] = defaultdict(float)
        """Seconds for which each has waited in its start, by incarnation."""

    async def run(self) -> None:
        while True:
            before = time.monotonic()
            children = list(self._processes.alive.values())
            answers = await asyncio.gather(*map(self._answers, children))
            await asyncio.sleep(self._pause)
            # A longer round is one in which we stood still ourselves, and could hear no answer.
            seconds = min(time.monotonic() - before, 2 * self._pause)
            lives = {child.incarnation for child in children}
            self._known &= lives
            for life in self._waited.keys() - lives:
                del self._waited[life]
            self._silences = {
                child.incarnation: self._silence(child, answers_now, seconds)
                for child, answers_now in zip(children, answers, strict=True)
            }
            self._judge(children)

    async def _answers(self, child: Child) -> bool | None:
        """None of a process that is not asked, or has not said yet where it listens."""
        if not child.address:
            return None
        return await self._ask(child.address, self._pause, self._trust)

    def _silence(self, child: Child, answers_now: bool | None, seconds: float) -> float:
        """After a round that took `seconds`."""
        life = child.incarnation
        if answers_now is None:
            return 0.0
        if answers_now:
            self._known.add(life)
        starts = life not in self._known and self._is_starting(child, seconds)
        if answers_now or (starts and not child.is_stopped()):
            return 0.0
        return self._silences.get(life, 0.0) + seconds

    def _is_starting(self, child: Child, seconds: float) -> bool:
        life = child.incarnation
        if self._waits(child.service.name):
            self._waited[life] += seconds
            return True
        return time.monotonic() - child.began - self._waited[life] < self._start_timeout

    async def end_overdue(self, name: str, why: str) -> None:
        """Kills a replica that has not left its devices to the trainer, as far as it is the one that was
        asked: who starts again does not listen yet, and comes to the devices in its turn."""
        child = self._processes.alive.get(name)
        if child is None or not (child.incarnation in self._known or await self._listens(child)):
            return
        if self._processes.alive.get(name) is child:
            self._note(f"{name} {why}; it is ended, and the trainer goes on")
            self._processes.kill(name)

    async def _listens(self, child: Child) -> bool:
        """Whether its port takes connections, as that of a frozen process does. It may have come up, and
        frozen, between two of our questions."""
        if not child.address:
            return False
        try:
            async with asyncio.timeout(self._pause):
                _, writer = await asyncio.open_connection(*split(child.address))
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    def _judge(self, children: list[Child]) -> None:
        for child in children:
            silence, name = self._silences[child.incarnation], child.service.name
            if silence >= self._timeout and self._processes.alive.get(name) is child:
                self._note(
                    f"{name} is frozen: it has not answered for {silence:.0f} s (frozen_timeout is"
                    f" {self._timeout:g} s); it is ended"
                )
                self._processes.kill(name)
                self._silences[child.incarnation] = 0.0  # who is only asked to end may stay a while
