"""The HTTP side of the manager, in the same event loop as its RunService."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn

from trimaran.errors import InputError
from trimaran.tls import http_context
from trimaran.trust import TlsFiles

STOP_SECONDS = 2


class _Server(uvicorn.Server):
    """Leaves the signals to us."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def http_server(app: Any, address: str, tls: TlsFiles | None) -> AsyncGenerator[str]:
    """Serves `app` until the block ends; gives the address with its port.

    Raises InputError for an address that cannot be bound.
    """
    host, _, port = address.rpartition(":")
    try:
        listening = socket.create_server((host, int(port)))
    except OSError as error:
        raise InputError(f"--http: {address}: {error.strerror}; name another") from None
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    config.load()
    config.ssl = http_context(tls) if tls else None
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"{host}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * STOP_SECONDS):
                await serving
