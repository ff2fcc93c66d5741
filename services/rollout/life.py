"""Signs of life on a stream that waits for its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

T = TypeVar("T")


async def with_signs_of_life(
    events: AsyncGenerator[T, None], interval: float, progress: Callable[[], int]
) -> AsyncGenerator[T | None, None]:
    """The events, and None after each `interval` seconds in which only others moved on.

    `progress` counts what the engine made for everybody. A hung engine makes
    nothing, so its streams stay silent and their callers' idle deadlines end them.
    """
    pending = asyncio.ensure_future(anext(events))
    seen = progress()
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=interval)
            if not done:
                if progress() != seen:
                    yield None
                seen = progress()
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            yield event
            seen = progress()
            pending = asyncio.ensure_future(anext(events))
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await events.aclose()
