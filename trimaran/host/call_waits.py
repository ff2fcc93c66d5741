"""What the work for a call waits for, so that the call is answered with it before its deadline.

A store waits longer for its server than most callers wait for their answer. So who waits says for
what, and `answering_within` ends the work just in time, with that as its error. Work that only takes
long is left alone.

    async with answering_within(10.0):
        with waiting_for("the store redis://host:6379/0") as wait:
            ...  # tried again and again
            wait.why = "connection refused"
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from trimaran.errors import DeadlineError, UnavailableError

MARGIN_SECONDS = 1.0
"""Before the deadline, for the answer's way back; of a short deadline a tenth."""
LONG_SHARE = 0.5
"""A share of the margin: how long a wait must have lasted. One that has just begun is no reason to give up."""


@dataclass(slots=True, eq=False)
class Wait:
    """Something that is waited for, and why it takes so long as far as that is known."""

    what: str
    since: float
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what} does not answer{f' ({self.why})' if self.why else ''}"


_waits: ContextVar[list[Wait] | None] = ContextVar("waits", default=None)


@contextmanager
def waiting_for(what: str) -> Generator[Wait]:
    """Around a wait for something that may be away. `what`: with its name."""
    wait = Wait(what, asyncio.get_running_loop().time())
    waits = _waits.get()
    if waits is None:
        yield wait
        return
    waits.append(wait)
    try:
        yield wait
    finally:
        waits.remove(wait)


@asynccontextmanager
async def locked(lock: asyncio.Lock, what: str) -> AsyncGenerator[None]:
    """The lock; `what` is waited for while another task has it."""
    with waiting_for(what):
        await lock.acquire()
    try:
        yield
    finally:
        lock.release()


@asynccontextmanager
async def answering_within(seconds: float | None) -> AsyncGenerator[None]:
    """Raises UnavailableError just before `seconds` are over where something is waited for then."""
    if seconds is None:
        yield
        return
    loop = asyncio.get_running_loop()
    deadline, margin = loop.time() + seconds, min(MARGIN_SECONDS, seconds / 10)
    waits: list[Wait] = []
    reason = ""
    _waits.set(waits)

    def look() -> None:
        """Again soon where no wait is long: the work may have left a long one just now for another. No caller
        hears an answer after the deadline."""
        nonlocal reason, timer
        begun = loop.time() - margin * LONG_SHARE
        if long := [wait for wait in waits if wait.since <= begun]:
            reason = str(long[-1])
            scope.reschedule(loop.time())
        elif loop.time() < deadline:
            timer = loop.call_later(margin / 10, look)

    timer = loop.call_later(seconds - margin, look)
    try:
        async with asyncio.timeout(None) as scope:
            yield
    except TimeoutError:
        if not reason:
            raise
        raise UnavailableError(reason) from None
    finally:
        timer.cancel()


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncGenerator[None]:
    """What is awaited inside is cancelled after `seconds`. Raises DeadlineError, which names `what`."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        if isinstance(error, DeadlineError):
            raise  # of a narrower wait
        raise DeadlineError(f"{what}: no end after {seconds:g} s") from None
