"""Waits inside a replica that end: for a lock, for a call of the engine, for what never should end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Never

from trimaran.errors import DeadlineError, first_error
from trimaran.host.call_waits import within


@asynccontextmanager
async def hold(lock: asyncio.Lock, seconds: float, what: str) -> AsyncIterator[None]:
    """`async with lock`, got within `seconds`. Raises DeadlineError, which names `what` has it."""
    async with within(seconds, what):
        await lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def alarm(seconds: float, what: str) -> Iterator[None]:
    """For what blocks the main thread in Python code, such as the start of an engine. Raises
    DeadlineError in it, which names `what`."""

    def ring(number: int, frame: object) -> Never:
        raise DeadlineError(f"{what}: no end after {seconds:g} s")

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)


async def until_first_end(*endless: Coroutine[Any, Any, None]) -> None:
    """Run endless work: raises what the first one raises, and ends the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for work in endless:
                tasks.create_task(work)
    except ExceptionGroup as errors:
        raise first_error(errors) from None
