"""Bounds of those who watch runs, so that a slow or greedy one slows nobody."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, contextmanager
from typing import TypeVar, cast

from trimaran.errors import LimitError

EVENTS_PER_SECOND = 1000.0
BURST = 20_000
"""Events that one watcher gets at once: the past of a run, to begin with."""

Item = TypeVar("Item")


class Watchers:
    """Counts who watches.

    Example:
        with watchers.one_more(client.name):
            async for event in paced(events):
                yield event
    """

    def __init__(self, most: int) -> None:
        """`most`: of one client, at a time."""
        self._most = most
        self._num: Counter[str] = Counter()

    @contextmanager
    def one_more(self, client: str) -> Generator[None]:
        """Raises LimitError."""
        if self._num[client] >= self._most:
            raise LimitError(
                f"watchers of {client}: {self._num[client]} at a time (of events, followed logs and"
                f" ledgers that are verified), and {self._most} is the most; end one, or watch"
                " several runs by ListRuns"
            )
        self._num[client] += 1
        try:
            yield
        finally:
            self._num[client] -= 1
            if not self._num[client]:
                del self._num[client]


async def paced(
    items: AsyncIterator[Item], per_second: float = EVENTS_PER_SECOND, burst: int = BURST
) -> AsyncGenerator[Item, None]:
    """The same items, at most `burst` at once and then `per_second`.

    Nothing is kept for a watcher that is slower: `items` is asked for the next one when the one
    before was taken, so it must itself wait nowhere but in the store.
    """
    loop = asyncio.get_running_loop()
    tokens, then = float(burst), loop.time()
    async with aclosing(cast(AsyncGenerator[Item, None], items)):
        async for item in items:
            now = loop.time()
            tokens, then = min(float(burst), tokens + (now - then) * per_second), now
            if tokens < 1:
                await asyncio.sleep((1 - tokens) / per_second)
            tokens -= 1
            yield item
