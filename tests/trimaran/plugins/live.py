"""Runs an ASGI application behind real sockets, in the loop of the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # they belong to pytest
        yield


@asynccontextmanager
async def serving(app: Any, **settings: Any) -> AsyncIterator[str]:
    """async with serving(app) as url. Ends by force what is still at work."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            app, log_config=None, timeout_graceful_shutdown=0, ws="none", **settings
        )
        server = Server(config)
        task = asyncio.create_task(server.serve([listener]))
        scheme = "https" if "ssl_certfile" in settings else "http"
        try:
            yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            # At once: uvicorn looks only every tenth of a second whether it should end.
            task.cancel()
            await asyncio.wait([task])
            await server.shutdown([listener])
