"""The HTTP side of the manager, in the same event loop as its RunService."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn

from trimaran.errors import InputError
from trimaran.trust import TlsFiles

STOP_SECONDS = 2
REREAD_SECONDS = 30.0
"""After which a connection is made by today's certificate."""


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
        **_tls_options(tls),
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    rereading = asyncio.create_task(_reread(config, tls)) if tls else None
    try:
        yield f"{host}:{listening.getsockname()[1]}"
    finally:
        if rereading:
            rereading.cancel()
        server.should_exit = True
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * STOP_SECONDS):
                await serving


def _tls_options(tls: TlsFiles | None) -> dict[str, Any]:
    if tls is None:
        return {}
    options: dict[str, Any] = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
    if tls.authorities:
        options |= {"ssl_ca_certs": str(tls.authorities), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options


async def _reread(config: uvicorn.Config, tls: TlsFiles) -> None:
    while True:
        await asyncio.sleep(REREAD_SECONDS)
        assert config.ssl and tls.certificate
        with suppress(OSError, ssl.SSLError):  # half written: the next time it is whole
            config.ssl.load_cert_chain(tls.certificate, tls.key)
