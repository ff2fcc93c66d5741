"""The runs' own stores, opened while they are needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from trimaran.errors import NotFoundError
from trimaran.host.call_waits import locked
from trimaran.store import Store, find_store, open_store, store_name

IDLE_SECONDS = 2.0
"""Longer than the time between two looks at a run: a store that is open takes a thread and three
descriptors."""


@dataclass(slots=True)
class _Shared:
    """One run's connection. Its lock is held while it is opened or closed."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    store: Store | None = None
    users: int = 0
    """With those who wait for it."""
    used_at: float = 0.0


class RunStores:
    """One connection for each run, shared by all who need it. A store that hangs holds up only those
    who need that one.

    Example:
        async with stores.of(run.store_url) as store:
            await store.get(f"run/{run.run_id}")
    """

    def __init__(
        self,
        idle_seconds: float = IDLE_SECONDS,
        open: Callable[[str], Awaitable[Store]] = open_store,
        find: Callable[[str], Awaitable[Store | None]] = find_store,
    ) -> None:
        """`find` opens what is there, `open` also makes it."""
        self._shared: dict[str, _Shared] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._idle_seconds = idle_seconds
        self._open, self._find = open, find

    @asynccontextmanager
    async def of(self, url: str, make: bool = False) -> AsyncGenerator[Store]:
        """Raises NotFoundError where nothing was recorded yet, unless it may be made."""
        shared = self._shared.setdefault(url, _Shared())
        shared.users += 1
        try:
            async with locked(shared.lock, "the store of the run, which is being opened,"):
                if shared.store is None:
                    shared.store = await (self._open(url) if make else self._find(url))
                store = shared.store
            if store is None:
                raise NotFoundError(f"{store_name(url)}: nothing was recorded there")
            yield store
        finally:
            shared.users -= 1
            shared.used_at = time.monotonic()
            self._drop(url, shared)

    def close_idle(self) -> None:
        """Called now and then. It does not wait for stores that hang."""
        before = time.monotonic() - self._idle_seconds
        for url, shared in list(self._shared.items()):
            if shared.used_at < before:
                self.close_unused(url)

    def close_unused(self, url: str) -> None:
        """Closes a store that is not needed again soon, without waiting for it."""
        shared = self._shared.get(url)
        if shared is not None and shared.store is not None and not shared.users:
            del self._shared[url]
            closing = asyncio.create_task(shared.store.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def forget(self, url: str) -> None:
        """Before its files are removed. Who still uses it gets an error."""
        if shared := self._shared.get(url):
            async with shared.lock:
                store, shared.store = shared.store, None
                if store is not None:
                    await store.close()
            self._drop(url, shared)

    async def close(self) -> None:
        await asyncio.gather(*map(self.forget, list(self._shared)), *self._closing)

    def _drop(self, url: str, shared: _Shared) -> None:
        if shared.store is None and not shared.users:
            self._shared.pop(url, None)
