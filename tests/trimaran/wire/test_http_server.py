"""What strangers may hold open of an HTTP server."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from trimaran.run.network import listening_at
from trimaran.trust.tls import http_context
from trimaran.wire.http_server import HttpServer, http_config

REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """A server whose answer to /slow comes when `go` says so, and its clients."""

    def __init__(self, tls: ssl.SSLContext | None, **bounds: Any) -> None:
        self.go, self.begun = asyncio.Event(), asyncio.Event()
        self.server = HttpServer(
            http_config(self._answer, tls, lifespan="off", interface="asgi3"), **bounds
        )
        self.listener, self.address = listening_at("127.0.0.1:0", "address")
        self.clients: list[Pair] = []

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.set()
        if scope["path"] == "/slow":
            await self.go.wait()
        elif scope["path"] == "/body":
            await receive()
            await receive()  # the whole body never comes
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def connect(self, words: bytes = b"", **options: Any) -> Pair:
        host, port = self.listener.getsockname()
        reader, writer = await asyncio.open_connection(host, port, **options)
        self.clients.append((reader, writer))
        writer.write(words)
        return reader, writer

    async def ask(self, words: bytes = REQUEST, **options: Any) -> bytes:
        reader, _ = await self.connect(words, **options)
        return await reader.readuntil(b"ok")

    async def settled(self, count: int) -> None:
        """Once the server knows of so many connections."""
        while len(self.server.server_state.connections) != count:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def served(tls: ssl.SSLContext | None = None, **bounds: Any) -> AsyncIterator[Served]:
    it = Served(tls, **bounds)
    serving = asyncio.create_task(it.server.serve([it.listener]))
    try:
        async with asyncio.timeout(30):
            yield it
    finally:
        for _, writer in it.clients:
            writer.transport.abort()
        it.go.set()
        it.server.should_exit = True
        await serving


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\nhost: a", REQUEST, REQUEST + b"GET"])
async def test_a_client_that_sends_no_whole_request_in_time_is_let_go(words: bytes) -> None:
    async with served(headers_seconds=0.0) as it:
        reader, writer = await it.connect(words)
        await it.settled(1)
        if words.startswith(REQUEST):
            await reader.readuntil(b"ok")
        await it.server.on_tick(0)
        writer.write(b"x")  # more of the headers gives no more time
        await it.server.on_tick(0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


async def test_an_answer_under_way_may_take_its_time() -> None:
    async with served(headers_seconds=0.0) as it:
        reader, _ = await it.connect(REQUEST.replace(b"/ ", b"/slow "))
        await it.begun.wait()
        await it.server.on_tick(0)
        await it.server.on_tick(0)
        it.go.set()
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "words", [b"", b"POST /body HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nx"]
)
async def test_who_lets_the_server_wait_makes_room(words: bytes) -> None:
    async with served(most=3) as it:
        silent = [await it.connect(words) for _ in range(3)]
        await it.settled(3)
        assert await it.ask()
        reading = [asyncio.ensure_future(reader.read(1)) for reader, _ in silent]
        ended, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        assert len(ended) == 1 and len(it.server.server_state.connections) == 3
        assert all(one.exception() or not one.result() for one in ended)
        for one in reading:
            one.cancel()


async def test_answers_under_way_make_no_room() -> None:
    async with served(most=3) as it:
        slow = [await it.connect(REQUEST.replace(b"/ ", b"/slow ")) for _ in range(3)]
        await it.settled(3)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await it.ask()
        it.go.set()
        for reader, _ in slow:
            assert await reader.readuntil(b"ok")


@pytest.mark.parametrize("greets", [False, True], ids=["before", "after"])
async def test_the_same_behind_tls_before_and_after_the_handshake(
    greets: bool, tmp_path: Path
) -> None:
    files = Authority("test").write(tmp_path)
    client = ssl.create_default_context(cafile=str(files.authorities))
    assert files.certificate and files.key
    client.load_cert_chain(files.certificate, files.key)
    async with served(
        http_context(files), most=3, headers_seconds=0.0, handshake_seconds=0.2
    ) as it:
        for _ in range(5):
            await it.connect(ssl=client if greets else None)
        assert await it.ask(ssl=client)
        reader, _ = await it.connect(ssl=client if greets else None)
        if greets:
            await it.server.on_tick(0)
            await it.server.on_tick(0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


@contextmanager
def few_files(spare: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe.fileno() + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_descriptors_it_says_so_once_and_serves_when_some_are_free(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimaran.wire.http_server.RETRY_SECONDS", 0.05)
    async with served() as it:
        with few_files(spare=1), caplog.at_level(logging.WARNING):
            reader, _ = await it.connect(REQUEST)
            while not caplog.records:
                await asyncio.sleep(0.001)
            assert "Too many open files" in caplog.records[0].getMessage()
            assert len(caplog.records) == 1
        assert await reader.readuntil(b"ok")


async def test_headers_have_a_size() -> None:
    async with served() as it:
        reader, writer = await it.connect(b"GET / HTTP/1.1\r\nhost: a\r\nlong: " + b"a" * (1 << 20))
        with pytest.raises(ConnectionError):
            while await reader.read(1 << 16):
                pass
            writer.write(b"\r\n\r\n")
            await writer.drain()
            raise ConnectionResetError
