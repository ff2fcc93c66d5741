"""Brings replicas that are behind to the live version, each by a task of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from services.weight_sync.members import Member, Members

logger = logging.getLogger(__name__)

MAX_FAILURES = 6
"""In a row, after which a replica is left alone until it registers again."""
FIRST_PAUSE_SECONDS = 1.0
"""Before a replica is tried again; doubles with each failure."""


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
        """Until the replica is live, has failed too often, or has registered again."""
        while self._members.is_current(member):
            failures = self._members.get(member.name).failures
            if failures >= MAX_FAILURES:
                logger.error("%s failed %d times in a row; restart it", member.name, failures)
                return
            if failures:
                await asyncio.sleep(self._first_pause * 2 ** (failures - 1))
            if await self._bring_up(member):
                return
            if failures == self._members.get(member.name).failures:
                await asyncio.sleep(self._first_pause)  # the trainer cannot send it yet


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a catch-up failed in a way that was not foreseen", exc_info=error)
