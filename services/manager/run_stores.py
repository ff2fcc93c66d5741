"""The runs' own stores, opened while somebody needs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trimaran.errors import NotFoundError
from trimaran.store import Store, find_store, open_store
from trimaran.waits import locked

IDLE_SECONDS = 30.0


@dataclass(slots=True)
class _Open:
    store: Store
    users: int = 0
    used_at: float = 0.0


class RunStores:
    """One connection for each run, shared by all who need it.

    Example:
        async with stores.of(run.store_url) as store:
            await store.get(f"run/{run.run_id}")
    """

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._open: dict[str, _Open] = {}
        self._lock = asyncio.Lock()
        self._idle_seconds = idle_seconds

    @asynccontextmanager
    async def of(self, url: str, make: bool = False) -> AsyncGenerator[Store]:
        """Raises NotFoundError where nothing was recorded yet, unless it may be made."""
        async with locked(self._lock, "the store of another run, which is being opened,"):
            entry = self._open.get(url)
            if entry is None:
                store = await (open_store(url) if make else find_store(url))
                if store is None:
                    raise NotFoundError(f"{url}: nothing was recorded there")
                entry = self._open[url] = _Open(store)
            entry.users += 1
        try:
            yield entry.store
        finally:
            entry.users -= 1
            entry.used_at = time.monotonic()

    async def close_idle(self) -> None:
        """To be called now and then."""
        before = time.monotonic() - self._idle_seconds
        async with self._lock:
            for url in [u for u, e in self._open.items() if not e.users and e.used_at < before]:
                await self._open.pop(url).store.close()

    async def forget(self, url: str) -> None:
        """Before its files are removed. Who still uses it gets an error."""
        async with self._lock:
            if entry := self._open.pop(url, None):
                await entry.store.close()

    async def close(self) -> None:
        async with self._lock:
            for entry in self._open.values():
                await entry.store.close()
            self._open.clear()
