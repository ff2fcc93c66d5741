"""The stores that the contract is tested on. One of your own: add it to STORES."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.extending.memory_store import MemoryStore
from trimaran.store import Store, open_store

Connect = Callable[[], Awaitable[Store]]
"""A further client of the same store, as another process is."""


def memory(request: pytest.FixtureRequest) -> Connect:
    store: Store = MemoryStore()

    async def connect() -> Store:
        return store

    return connect


def sqlite(request: pytest.FixtureRequest) -> Connect:
    folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("store")
    return lambda: open_store(f"sqlite:{folder / 'store.sqlite'}")


def redis(request: pytest.FixtureRequest) -> Connect:
    url = request.getfixturevalue("shared_redis").url(uuid.uuid4().hex)
    return lambda: open_store(url)


STORES: dict[str, Callable[[pytest.FixtureRequest], Connect]] = {
    "memory": memory,
    "sqlite": sqlite,
    "redis": redis,
}


@asynccontextmanager
async def opened(connect: Connect, num_clients: int = 1) -> AsyncGenerator[Any]:
    """One client, or a list of several, for a minute at most."""
    stores = [await connect() for _ in range(num_clients)]
    try:
        async with asyncio.timeout(60):
            yield stores[0] if num_clients == 1 else stores
    finally:
        for store in stores:
            await store.close()
            await store.close()
