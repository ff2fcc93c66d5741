"""What an engine makes, in batches, with signs of life while a stream waits for its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

T = TypeVar("T")


async def with_signs_of_life(
    events: AsyncGenerator[T, None], interval: float, progress: Callable[[], int]
) -> AsyncGenerator[list[T], None]:
    """All events that have come since the last batch, and an empty batch after each `interval`
    seconds in which only others moved on.

    `progress` counts what the engine made for all streams. A hung engine makes
    nothing, so its streams stay silent and their callers' idle deadlines end them.
    """
    batch: list[T] = []
    came = asyncio.Event()

    async def gather() -> None:
        try:
            async for event in events:
                batch.append(event)
                came.set()
        finally:
            came.set()

    gathering = asyncio.create_task(gather())
    seen = progress()
    try:
        while batch or not gathering.done():
            try:
                async with asyncio.timeout(interval):
                    await came.wait()
            except TimeoutError:
                if progress() != seen:
                    yield []
            came.clear()
            if batch:
                ready, batch = batch, []
                yield ready
            seen = progress()
        await gathering
    finally:
        gathering.cancel()
        await asyncio.gather(gathering, return_exceptions=True)
        await events.aclose()
