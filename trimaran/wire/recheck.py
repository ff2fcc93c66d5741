"""Streams that go on only as long as their client may read them: a token may be withdrawn, or become
another owner's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeVar

from trimaran.errors import TrimaranError, UnauthenticatedError

IDENTIFY_SECONDS = 5.0
"""After which the client of a stream that goes on is identified again."""

Item = TypeVar("Item")


async def while_allowed(
    items: AsyncIterator[Item], identify: Callable[[], object], seconds: float = IDENTIFY_SECONDS
) -> AsyncGenerator[Item]:
    """The same items. `identify` is called every `seconds`, also while no item comes; what it raises
    ends them, and so does another answer than at first.

    Example:
        async for event in while_allowed(events, partial(clients.identify, method, token)):
            print(event.kind)
    """
    loop, known = asyncio.get_running_loop(), identify()
    waiting: asyncio.Timeout | None = None
    refusal: TrimaranError | None = None

    def ask() -> None:
        nonlocal refusal, timer
        try:
            if identify() != known:
                raise UnauthenticatedError("the client's owner or role has changed; call again")
        except TrimaranError as error:
            refusal = error
            if waiting:
                waiting.reschedule(loop.time())
        else:
            timer = loop.call_later(seconds, ask)

    timer = loop.call_later(seconds, ask)
    iterator = aiter(items)
    try:
        while refusal is None:
            try:
                async with asyncio.timeout(None) as waiting:
                    item = await anext(iterator)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if refusal is None:
                    raise
                break
            finally:
                waiting = None
            yield item
        raise refusal
    finally:
        timer.cancel()
        if isinstance(items, AsyncGenerator):
            await items.aclose()
