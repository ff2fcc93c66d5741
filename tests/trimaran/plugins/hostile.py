"""HTTP servers that answer as a test says, byte for byte, and record what they were sent."""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

INFO = {"contract": "trimaran.reward/1", "name": "test"}


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    more: Callable[[], Awaitable[bytes]]
    """What the client sends next: nothing once it is gone."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Reply = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """`replies` to POST in turn, the last one for ever; /v1/info is `info`, or a reply."""

    def __init__(
        self,
        *replies: Reply,
        info: Mapping[str, Any] | Reply = INFO,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.reply(*replies, info=info)
        self._tls, self.port = tls, port
        self.received: list[Received] = []
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def reply(self, *replies: Reply, info: Mapping[str, Any] | Reply = INFO) -> None:
        """From now on."""
        self._replies = list(replies)
        self._info = info if callable(info) else answer(200, json.dumps(info).encode())

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def posts(self) -> list[Received]:
        return [request for request in self.received if request.method == "POST"]

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while request := await _read(reader):
                self.received.append(request)
                await self._next(request)(request, writer)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):  # only __aexit__ cancels
            pass
        finally:
            writer.close()

    def _next(self, request: Received) -> Reply:
        if request.method == "GET":
            return self._info
        return self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]


async def _read(reader: asyncio.StreamReader) -> Received | None:
    with suppress(asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Received(method, path, headers, body, reader.read)
    return None


def answer(status: int, body: bytes, **headers: str) -> Reply:
    """Names of headers with _ for -."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return raw("\r\n".join([*lines, "", ""]).encode() + body)


def raw(content: bytes) -> Reply:
    async def reply(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(content)

    return reply


def results(*found: Any) -> Reply:
    return answer(
        200, json.dumps({"contract": "trimaran.reward/1", "results": list(found)}).encode()
    )


def of_texts(score: Callable[[str], Any]) -> Reply:
    """What `score` makes of each completion's text."""

    async def reply(request: Received, writer: asyncio.StreamWriter) -> None:
        found = [score(sample["text"]) for sample in request.json["samples"]]
        await results(*found)(request, writer)

    return reply


async def never(request: Received, _: asyncio.StreamWriter) -> None:
    """No answer for as long as the client waits."""
    await request.more()


async def drip(_: Received, writer: asyncio.StreamWriter) -> None:
    """A byte at a time, for ever."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


def flood(num_bytes: int, length_known: bool) -> Reply:
    async def reply(_: Received, writer: asyncio.StreamWriter) -> None:
        size = f"Content-Length: {num_bytes}" if length_known else "Connection: close"
        writer.write(f"HTTP/1.1 200 OK\r\n{size}\r\n\r\n".encode())
        for _sent in range(0, num_bytes, 1 << 20):
            writer.write(b"[" * (1 << 20))
            await writer.drain()
        writer.close()

    return reply


async def reset(_: Received, writer: asyncio.StreamWriter) -> None:
    """Breaks off in the middle of an answer."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()
    abort(writer)


async def hang_up(_: Received, writer: asyncio.StreamWriter) -> None:
    """Without an answer."""
    abort(writer)


def abort(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
