"""Which store a URL names."""

from __future__ import annotations

from pathlib import Path

from trimaran.errors import InputError
from trimaran.store.port import Store
from trimaran.store.sqlite import SqliteStore

SQLITE = "sqlite:"


async def open_store(url: str) -> Store:
    """The store, made where there is none yet: `sqlite:PATH`.

    Raises InputError for a URL that names none, and StoreError and UnavailableError as each call.

    Example: store = await open_store("sqlite:runs/demo-20261120-120000/store.sqlite")
    """
    store = SqliteStore(_path(url))
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


async def find_store(url: str) -> Store | None:
    """The store; None where nothing was recorded yet."""
    return await open_store(url) if _path(url).is_file() else None


def _path(url: str) -> Path:
    if not url.startswith(SQLITE) or url == SQLITE:
        raise InputError(f"{url}: not a store; give sqlite:PATH")
    return Path(url.removeprefix(SQLITE))
