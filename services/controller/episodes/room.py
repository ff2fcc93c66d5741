"""Which process of the environment service holds the next episode: the one with the fewest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence, Set
from contextlib import asynccontextmanager

from trimaran.clients import EnvironmentClient


class EnvironmentRoom:
    """Places for episodes: `max_episodes` in each process.

    Example:
        async with room.place(avoid=frozenset()) as (index, client):
            opening = await client.open(...)
    """

    def __init__(self, clients: Sequence[EnvironmentClient], max_episodes: int) -> None:
        self._clients, self._max_episodes = clients, max_episodes
        self._num_open = [0] * len(clients)
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def place(self, avoid: Set[int]) -> AsyncGenerator[tuple[int, EnvironmentClient]]:
        """Waits for room; in a process outside `avoid` where there is a choice."""
        async with self._freed:
            await self._freed.wait_for(lambda: min(self._num_open) < self._max_episodes)
            index = min(
                (n for n, count in enumerate(self._num_open) if count < self._max_episodes),
                key=lambda n: (n in avoid, self._num_open[n], n),
            )
            self._num_open[index] += 1
        try:
            yield index, self._clients[index]
        finally:
            self._num_open[index] -= 1
            async with self._freed:
                self._freed.notify()
