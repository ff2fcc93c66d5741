"""Recent answers by idempotency key: a request that is sent again is not worked on again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any


class KeyReusedError(Exception):
    """The key was used for another request."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    answer: bytes
    final: bool
    """False: a fault is in it that another try may not meet; it is not kept."""


class Answers:
    """Bounded in number and in bytes; what was not asked for the longest goes first.

    Example:
        async def make() -> Made:
            return KeptAnswer(b'{"results": []}', final=True)

        answer = await answers.get_or_make("key-1", sha256(request).digest(), make)
    """

    def __init__(self, max_answers: int = 4096, max_bytes: int = 64 << 20) -> None:
        self._max_answers, self._max_bytes = max_answers, max_bytes
        self._kept: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()
        """Key -> the request's digest and its answer."""
        self._num_bytes = 0
        self._running: dict[str, tuple[bytes, asyncio.Task[bytes]]] = {}

    async def get_or_make(
        self, key: str, digest: bytes, make: Callable[[], Coroutine[Any, Any, KeptAnswer]]
    ) -> bytes:
        """The answer under this key, kept or under way, or else what `make` gives.

        The work goes on when its caller goes away, so that the caller's next try finds it. What
        `make` raises is raised to all who wait, and is not kept. Raises KeyReusedError.
        """
        if key not in self._kept and key not in self._running:
            self._running[key] = digest, asyncio.create_task(self._make(key, digest, make))
        known, found = self._kept.get(key) or self._running[key]
        if known != digest:
            raise KeyReusedError
        if isinstance(found, bytes):
            self._kept.move_to_end(key)
            return found
        return await asyncio.shield(found)

    async def close(self) -> None:
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(
        self, key: str, digest: bytes, make: Callable[[], Coroutine[Any, Any, KeptAnswer]]
    ) -> bytes:
        try:
            made = await make()
        finally:
            del self._running[key]
        if made.final and len(made.answer) <= self._max_bytes:
            self._kept[key] = digest, made.answer
            self._num_bytes += len(made.answer)
        while len(self._kept) > self._max_answers or self._num_bytes > self._max_bytes:
            _, (_, oldest) = self._kept.popitem(last=False)
            self._num_bytes -= len(oldest)
        return made.answer
