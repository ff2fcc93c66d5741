"""uvicorn for people, probes and reward plugins, with bounds on what strangers may hold open.

    accept ──▶ TLS handshake ──▶ request ──▶ answer ──▶ (next request)
               5 s               headers: 10 s          idle: 5 s

Where there are too many connections, the one whose client has been waited for longest makes room. One
whose answer is under way stays.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf
from operator import itemgetter
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trimaran.host.open_files import most_connections

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
"""For the TLS handshake."""
HEADERS_SECONDS = 10.0
"""From the connection, or from the answer before, to the end of a request's headers."""
LOOK_TICKS = 10
"""Uvicorn's ticks, ten a second, between two looks for connections that say nothing."""
RETRY_SECONDS = 1.0
"""After an accept that failed, as it does where too many files are open."""
END_ROUNDS = 5
"""Rounds of the event loop within which a connection that was ended is gone."""
STOP_SECONDS = 2


def http_config(app: Any, tls: ssl.SSLContext | None = None, **settings: Any) -> uvicorn.Config:
    # h11 bounds the size of headers; httptools, which uvicorn takes where it is installed, does not.
    config = uvicorn.Config(
        app,
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        **settings,
    )
    config.load()
    config.ssl = tls or config.ssl
    return config


class HttpServer(uvicorn.Server):
    """Bounds its connections, and leaves the signals to us.

    Example: await HttpServer(http_config(app)).serve([listener])
    """

    def __init__(
        self,
        config: uvicorn.Config,
        most: int | None = None,
        headers_seconds: float = HEADERS_SECONDS,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        """`most` connections at a time; None: what `most_connections` says."""
        super().__init__(config)
        self._most = most_connections() if most is None else most
        self._headers_seconds = headers_seconds
        self._handshake_seconds = handshake_seconds if config.ssl else None
        self._accepting = set[asyncio.Task[None]]()
        self._opening: dict[asyncio.Task[None], float] = {}
        """Connections that are no protocol's yet, since when."""
        self._idle: dict[Any, tuple[Any, float]] = {}
        """Connections without a request: the one before, and since when."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """asyncio's own server knows no bound, and writes thousands of lines a second without files."""
        await super().startup(sockets=[])
        for listener in sockets or ():
            self.accept_at(listener)

    def accept_at(self, listener: socket.socket) -> asyncio.Task[None]:
        """A further one, until the task is cancelled, or the server ends."""
        listener.setblocking(False)
        accepting = asyncio.create_task(self._accept(listener))
        self._accepting.add(accepting)
        accepting.add_done_callback(self._accepting.discard)
        return accepting

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = (*self._accepting, *self._opening)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % LOOK_TICKS == 0:
            self._end_idle()
        return await super().on_tick(counter)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                logger.warning("HTTP: a connection cannot be accepted: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if not await self._has_room():
                sock.close()
                continue
            opening = asyncio.create_task(self._open(sock))
            self._opening[opening] = loop.time()
            opening.add_done_callback(self._opening.pop)
            await asyncio.sleep(0)  # a flood of connections must not hold all others up

    async def _open(self, sock: socket.socket) -> None:
        with suppress(OSError):  # it has gone, or does not speak TLS; TimeoutError is one, too
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                sock,
                ssl=self.config.ssl,
                ssl_handshake_timeout=self._handshake_seconds,
            )

    def _make_protocol(self) -> H11Protocol:
        return H11Protocol(self.config, self.server_state, self.lifespan.state)

    async def _has_room(self) -> bool:
        """For one more. The connection that has waited for its client for longest makes room."""
        connections: Any = self.server_state.connections
        if len(connections) + len(self._opening) < self._most:
            return True
        self._look()
        waiting: list[tuple[float, Callable[[], Any]]] = [
            *((since, opening.cancel) for opening, since in self._opening.items()),
            *((since, one.transport.abort) for one, (_, since) in self._idle.items()),
            *((inf, one.transport.abort) for one in connections if _is_held(one)),
        ]
        if waiting:
            _, end = min(waiting, key=itemgetter(0))
            end()
        for _ in range(END_ROUNDS):
            await asyncio.sleep(0)
            if len(connections) + len(self._opening) < self._most:
                return True
        return False

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        idle: dict[Any, tuple[Any, float]] = {}
        connections: Any = self.server_state.connections
        for connection in connections:
            request = connection.cycle
            if request is None or request.response_complete:
                before, since = self._idle.get(connection, (None, now))
                idle[connection] = request, (since if before is request else now)
        self._idle = idle

    def _end_idle(self) -> None:
        self._look()
        latest = asyncio.get_running_loop().time() - self._headers_seconds
        for connection, (_, since) in self._idle.items():
            if since <= latest:
                connection.transport.abort()  # a close in order waits for a word of a TLS client


def _is_held(connection: Any) -> bool:
    """By its client, which does not send the whole request, or does not read the answer."""
    request = connection.cycle
    return request is not None and (request.more_body or connection.flow.write_paused)


@asynccontextmanager
async def serving_http(
    app: Any, listener: socket.socket, tls: ssl.SSLContext | None
) -> AsyncGenerator[HttpServer]:
    """Serves `app` until the block ends."""
    server = HttpServer(http_config(app, tls, timeout_graceful_shutdown=STOP_SECONDS))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield server
    finally:
        server.should_exit = True
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * STOP_SECONDS):
                await serving
