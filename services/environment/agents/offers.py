"""Episodes that wait for a program which is started elsewhere."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from services.environment.agents.desk import Desk


@dataclass(frozen=True, slots=True)
class EpisodeOffer:
    """What a program gets that takes the episode. Example: EpisodeOffer("17.1.0", desk, {"seed": 7})"""

    name: str
    desk: Desk
    row: Mapping[str, Any]


class Offers:
    """First come, first served.

    Example:
        offers.put(EpisodeOffer("17.1.0", desk, row))
        assert await offers.take(30.0)
    """

    def __init__(self) -> None:
        self._waiting = deque[EpisodeOffer]()
        self._changed = asyncio.Event()

    def put(self, offer: EpisodeOffer) -> None:
        self._waiting.append(offer)
        self._changed.set()

    async def take(self, seconds: float) -> EpisodeOffer | None:
        """None where there is none for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._next()
        return None

    async def _next(self) -> EpisodeOffer:
        while True:
            while self._waiting:
                offer = self._waiting.popleft()
                if not offer.desk.is_over:
                    return offer
            self._changed.clear()
            await self._changed.wait()
