"""Waits inside a replica that end: for a lock, and for a call of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trimaran.errors import DeadlineError


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """What is awaited inside is cancelled after `seconds`. Raises DeadlineError, which names `what`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        if isinstance(error, DeadlineError):
            raise  # of a narrower wait
        raise DeadlineError(f"{what}: no end after {seconds:g} s") from None


@asynccontextmanager
async def hold(lock: asyncio.Lock, seconds: float, what: str) -> AsyncIterator[None]:
    """`async with lock`, got within `seconds`. Raises DeadlineError, which names `what` has it."""
    async with within(seconds, what):
        await lock.acquire()
    try:
        yield
    finally:
        lock.release()
