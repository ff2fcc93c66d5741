"""One store that hangs holds up nobody who needs another."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from services.manager.run_data.run_stores import RunStores
from trimaran.errors import NotFoundError
from trimaran.store import Store, open_store


async def number_of(stores: RunStores, url: str) -> int:
    async with stores.of(url, make=True) as store:
        return await store.last("events")


async def test_a_store_that_hangs_while_it_is_opened_holds_up_only_its_own_run(
    tmp_path: Path,
) -> None:
    may, opened = asyncio.Event(), list[str]()

    async def open_slowly(url: str) -> Store:
        opened.append(url)
        if url.endswith("hangs.sqlite"):
            await may.wait()
        return await open_store(url)

    stores = RunStores(open=open_slowly)
    hanging, other = (f"sqlite:{tmp_path}/{name}.sqlite" for name in ("hangs", "other"))
    waiting = [asyncio.create_task(number_of(stores, hanging)) for _ in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert await number_of(stores, other) == 0
        stores.close_idle()
    may.set()
    assert await asyncio.gather(*waiting) == [0, 0, 0]
    assert opened == [hanging, other]  # one connection for all who wait
    await stores.close()


async def test_idle_stores_are_closed_and_those_in_use_are_not(tmp_path: Path) -> None:
    closed: list[str] = []

    class Closing:
        def __init__(self, store: Store, url: str) -> None:
            self._store, self._url = store, url

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        async def close(self) -> None:
            closed.append(self._url)
            await self._store.close()
            if self._url.endswith("hangs.sqlite"):
                await asyncio.Event().wait()

    async def open_closing(url: str) -> Store:
        return Closing(await open_store(url), url)  # pyright: ignore[reportReturnType]

    stores = RunStores(idle_seconds=0.0, open=open_closing)
    names = ("used", "idle", "hangs")
    used, idle, hangs = (f"sqlite:{tmp_path}/{name}.sqlite" for name in names)
    for url in (idle, hangs):
        await number_of(stores, url)
    async with stores.of(used, make=True) as store:
        stores.close_idle()
        await asyncio.sleep(0)
        assert sorted(closed) == [hangs, idle]
        assert await store.last("events") == 0
        assert await number_of(stores, idle) == 0  # opened again
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await stores.close()
    assert used in closed


async def test_a_store_in_which_nothing_is_shows_no_password() -> None:
    async def find(url: str) -> Store | None:
        return None

    url = "redis://:secret@127.0.0.1:6379/0?prefix=run/demo"
    with pytest.raises(NotFoundError, match="^redis://127.0.0.1:6379/0 ") as raised:
        async with RunStores(find=find).of(url):
            pass
    assert "secret" not in str(raised.value)
