"""Which store a URL names."""

from __future__ import annotations

from pathlib import Path

from trimaran.errors import InputError
from trimaran.store.port import Store
from trimaran.store.redis_url import CALL_SECONDS, RedisUrl, inside, is_redis
from trimaran.store.sqlite import SqliteStore
from trimaran.store.sqlite_file import LOG

SQLITE = "sqlite:"
RUN_STORE_NAME = "store.sqlite"


OPEN_SECONDS = CALL_SECONDS
"""After which a server that does not answer is given up."""


def store_name(url: str) -> str:
    """For messages: without a password."""
    return RedisUrl.parse(url).name if is_redis(url) else url.removeprefix(SQLITE)


def is_shared(url: str) -> bool:
    """Processes of several hosts may use it."""
    return is_redis(url)


async def open_store(url: str) -> Store:
    """The store, made where there is none yet: `sqlite:PATH` or `redis://HOST:PORT/DB?prefix=NAME`.

    Raises InputError for a URL that names none or a server that may lose data, and StoreError and
    UnavailableError as each call.

    Example: store = await open_store("sqlite:runs/demo-20261120-120000/store.sqlite")
    """
    store = await _open(url, make=True)
    assert store
    return store


async def find_store(url: str) -> Store | None:
    """The store; None where nothing was recorded yet."""
    return await _open(url, make=False)


async def read_store(url: str) -> Store | None:
    """The same for who only reads: no file of it changes, and none is made beside it."""
    return await _open(url, make=False, is_read_only=True)


def store_in(folder: Path) -> str:
    """The URL of a run's own store, a file in its folder."""
    return f"{SQLITE}{folder / RUN_STORE_NAME}"


def run_store_url(url: str, run_id: str, folder: Path = Path()) -> str:
    """The store of a run of a manager whose own is at `url`: a file in the run's folder, or a prefix
    within the manager's on the same Redis server, on which several managers may have runs. There
    the folder says nothing."""
    if is_redis(url):
        return inside(url, f"run/{run_id}")
    return store_in(folder)


def written_at(url: str) -> float:
    """When the store's files were written last, in unix seconds; 0 for one that has none here."""
    path = Path(url.removeprefix(SQLITE))
    files = (path, path.with_name(f"{path.name}{LOG}"))
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def store_from(folder: Path, url: str) -> str:
    """The same store, where a relative path starts at `folder`.

    Example: store_from(Path("/srv"), "sqlite:a.sqlite") == "sqlite:/srv/a.sqlite"
    """
    path = url.removeprefix(SQLITE)
    return f"{SQLITE}{folder / path}" if url.startswith(SQLITE) and path else url


async def _open(url: str, make: bool, is_read_only: bool = False) -> Store | None:
    if is_redis(url):
        from trimaran.store.redis import RedisStore  # late: its import takes a tenth of a second

        store = RedisStore(url)
    elif url.startswith(SQLITE) and url != SQLITE:
        store = SqliteStore(Path(url.removeprefix(SQLITE)), is_read_only=is_read_only)
    else:
        raise InputError(f"{url.partition('//')[0]}: not a store; give sqlite:PATH or redis://…")
    try:
        is_there = await store.open(make)
    except BaseException:
        await store.close()
        raise
    if not is_there:
        await store.close()
    return store if is_there else None
