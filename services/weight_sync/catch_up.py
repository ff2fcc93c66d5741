"""Brings replicas that are behind to the live version, each by a task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from services.weight_sync.members import Member, Members

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
"""Before a replica is tried again; doubles with each failure in a row."""
LONGEST_PAUSE_SECONDS = 30.0
"""A replica that was frozen for long is back this soon."""


class CatchUps:
    def __init__(
        self,
        members: Members,
        bring_up: Callable[[Member], Awaitable[bool]],
        first_pause: float,
    ) -> None:
        """`bring_up` tries once; True when the replica holds the live version."""
        self._members = members
        self._bring_up = bring_up
        self._first_pause = first_pause
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, tuple[Member, float]] = {}
        """When a replica with these faults is tried again. It outlives the task: publications
        that follow each other closely must not begin the pause anew each time."""

    def start(self, member: Member) -> None:
        """Takes the place of a catch-up of the same replica."""
        if (former := self._tasks.get(member.name)) is not None:
            former.cancel()
        task = asyncio.create_task(self._run(member))
        task.add_done_callback(_log_failure)
        self._tasks[member.name] = task

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        await cancel(tasks)

    async def _run(self, member: Member) -> None:
        """Until the replica is live or has registered again."""
        while self._members.is_current(member):
            await asyncio.sleep(self._seconds_left(member.name))
            failures = self._members.get(member.name).failures
            if await self._bring_up(member):
                return
            if failures == self._members.get(member.name).failures:
                await asyncio.sleep(self._first_pause)  # the trainer cannot send it yet

    def _seconds_left(self, name: str) -> float:
        """Of the pause after the replica's last fault."""
        member, now = self._members.get(name), time.monotonic()
        before, due = self._due.get(name, (None, now))
        if member != before:
            due = now
            if member.failures:
                pause = self._first_pause * 2.0 ** min(member.failures - 1, 30)
                due += min(pause, LONGEST_PAUSE_SECONDS)
            self._due[name] = member, due
        return max(due - now, 0.0)


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a catch-up failed in a way that was not foreseen", exc_info=error)
