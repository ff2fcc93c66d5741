"""The manager's HTTP for reading alone: its pages and its API, out of the files of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.manager.http.app import LOOPBACK, make_app
from services.manager.permissions import READING
from services.manager.reading import RunReader
from services.manager.run_data.run_stores import RunStores
from services.manager.settings import LimitsSection
from services.manager.viewing.found_runs import FoundRuns
from trimaran.errors import ForbiddenError, first_error
from trimaran.run.network import listening_at
from trimaran.store import read_store
from trimaran.telemetry.exposition import Exposition
from trimaran.trust.access import ClientIdentity, Trust, is_loopback
from trimaran.trust.tls import http_context
from trimaran.wire.http_server import serving_http


@asynccontextmanager
async def reading(path: Path) -> AsyncGenerator[tuple[RunReader, FoundRuns]]:
    """Whoever asks the reader may read every run that lies at `path`. No file of a run changes.

    Example:
        async with reading(Path("runs")) as (reader, found):
            await reader.list(LOCAL)
    """
    stores = RunStores(find=read_store)
    found = FoundRuns(path, stores)
    try:
        await found.look()
        yield RunReader(found, stores, LimitsSection().watchers), found
    finally:
        await stores.close()


@asynccontextmanager
async def viewing(path: Path, address: str, trust: Trust) -> AsyncGenerator[str]:
    """Serves them until the block ends; the address with its port.

    Raises InputError where others than this machine's users could read, and there is no token or no TLS.

    Example:
        async with viewing(Path("runs"), "127.0.0.1:0", NO_TRUST) as address:
            await asyncio.Event().wait()
    """
    trust.check_address(address)

    def identify(method: str, token: str) -> ClientIdentity:
        if (name := method.rpartition("/")[2]) not in READING:
            raise ForbiddenError(
                f"{name}: what `trimaran view` shows is read only; submit and steer runs at a manager"
                " (trimaran up)"
            )
        return trust.identify(method, token)

    async with reading(path) as (reader, found):
        hosts = LOOPBACK if is_loopback(address) else frozenset[str]()
        app: Any = make_app(reader, identify, Exposition(), hosts=hosts, is_read_only=True)
        tls = http_context(trust.tls) if trust.tls else None
        listener, listening = listening_at(address, "--http")
        try:
            async with asyncio.TaskGroup() as tasks, serving_http(app, listener, tls):
                following = tasks.create_task(found.follow())
                try:
                    yield listening
                finally:
                    following.cancel()
        except ExceptionGroup as errors:
            raise first_error(errors) from None
