"""Recent answers by idempotency key: a request that is sent again is not scored again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any


class KeyReusedError(Exception):
    """The key was used for another request."""


@dataclass(frozen=True, slots=True)
class Made:
    answer: bytes
    final: bool
    """False: a fault is in it that another try may not meet; it is not kept."""


@dataclass(frozen=True, slots=True)
class _Kept:
    digest: bytes
    answer: bytes


class Answers:
    """Bounded in number and in bytes; what was not asked for the longest goes first.

    Example:
        async def make() -> Made:
            return Made(b'{"results": []}', final=True)

        answer = await answers.get_or_make("key-1", sha256(request).digest(), make)
    """

    def __init__(self, max_answers: int = 4096, max_bytes: int = 64 << 20) -> None:
        self._max_answers, self._max_bytes = max_answers, max_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._num_bytes = 0
        self._running: dict[str, tuple[bytes, asyncio.Task[bytes]]] = {}

    async def get_or_make(
        self, key: str, digest: bytes, make: Callable[[], Coroutine[Any, Any, Made]]
    ) -> bytes:
        """The answer under this key, kept or under way, or else what `make` gives.

        The work goes on when its caller goes away, so that the caller's next try finds it. What
        `make` raises is raised to all who wait, and is not kept. Raises KeyReusedError.
        """
        if kept := self._kept.get(key):
            self._check(kept.digest, digest)
            self._kept.move_to_end(key)
            return kept.answer
        if key in self._running:
            known, task = self._running[key]
            self._check(known, digest)
        else:
            task = asyncio.create_task(self._make(key, digest, make))
            self._running[key] = digest, task
        return await asyncio.shield(task)

    async def close(self) -> None:
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(
        self, key: str, digest: bytes, make: Callable[[], Coroutine[Any, Any, Made]]
    ) -> bytes:
        try:
            made = await make()
        finally:
            del self._running[key]
        if made.final:
            self._keep(key, _Kept(digest, made.answer))
        return made.answer

    def _keep(self, key: str, kept: _Kept) -> None:
        if len(kept.answer) > self._max_bytes:
            return
        self._kept[key] = kept
        self._num_bytes += len(kept.answer)
        while len(self._kept) > self._max_answers or self._num_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= len(oldest.answer)

    @staticmethod
    def _check(known: bytes, given: bytes) -> None:
        if known != given:
            raise KeyReusedError
