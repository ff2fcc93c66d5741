"""A run's events as server-sent events, which every browser and curl can read.

    id: 7                    the event's sequence number; Last-Event-ID goes on behind it
    event: step              its kind
    data: {"sequence": 7, ...}

A comment is sent where nothing happens, so that no proxy takes the connection for dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from pydantic import TypeAdapter

from trimaran.errors import TrimaranError
from trimaran.run.runs import RunEvent
from trimaran.wire.http_problems import problem_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

HEARTBEAT = b": nothing new\n\n"
_event = TypeAdapter(RunEvent)


async def server_sent(
    events: AsyncIterator[RunEvent], heartbeat_seconds: float
) -> AsyncIterator[bytes]:
    """Ends with the events; an error on the way becomes an event of kind `problem`."""
    try:
        async for event in with_pauses(events, heartbeat_seconds):
            yield encode(event) if event else HEARTBEAT
    except TrimaranError as error:
        logger.warning("a watcher's events ended: %s", error)
        yield b"event: problem\ndata: " + problem_of(error).model_dump_json().encode() + b"\n\n"


def encode(event: RunEvent) -> bytes:
    """Numbers that are not finite become null."""
    head = f"id: {event.sequence}\nevent: {event.kind.value}\ndata: "
    return head.encode() + _event.dump_json(event) + b"\n\n"


async def with_pauses(items: AsyncIterator[T], seconds: float) -> AsyncGenerator[T | None, None]:
    """The items, and None after each `seconds` without one."""

    async def take() -> T:
        return await anext(items)

    taking = asyncio.create_task(take())
    try:
        while True:
            done, _ = await asyncio.wait([taking], timeout=seconds)
            if not done:
                yield None
                continue
            try:
                item = taking.result()
            except StopAsyncIteration:
                return
            yield item
            taking = asyncio.create_task(take())
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        if isinstance(items, AsyncGenerator):
            await items.aclose()
