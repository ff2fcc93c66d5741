"""One session of an OpenEnv server: a WebSocket, over which each request has one answer.

    {"type": "reset", "data": {"seed": 7}}  ──▶ {"type": "observation", "data": {"observation", "reward", "done"}}
    {"type": "step", "data": the action}    ──▶ the same
    {"type": "close"}                       ──▶ the end
    anything that it cannot do              ──▶ {"type": "error", "data": {"code", "message"}}

A server without room says so before it is asked, and closes. As package openenv 0.10.0 does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp
from pydantic import Field, JsonValue

from trimaran.errors import UnavailableError
from trimaran.plugins.forms import CallError, Lenient, Model, parse

MAX_FRAME_BYTES = 16 << 20
MAX_WAITING = 16
"""Messages that were not asked for; beyond it a server is not read."""
CLOSE_SECONDS = 2.0


class RefusedError(Exception):
    """The server's own word that it cannot do what it was asked."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


class Observed(Lenient):
    """What reset and step answer."""

    observation: dict[str, JsonValue]
    reward: float | bool | None = None
    done: bool = False


class _ErrorData(Lenient):
    code: str = ""
    message: str = ""
    errors: list[dict[str, JsonValue]] = Field(default=[])


class _Frame(Lenient):
    type: str
    data: dict[str, JsonValue] = Field(default={})


class Session:
    """Example:
    session = await Session.connect(client, "ws://127.0.0.1:8000/ws")
    observed = await session.ask("reset", {"seed": 7})
    await session.close()
    """

    def __init__(self, url: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._url, self._socket = url, socket
        self._frames: asyncio.Queue[aiohttp.WSMessage | None] = asyncio.Queue(MAX_WAITING)
        # Pings are answered only while the socket is read, also between two questions.
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, client: aiohttp.ClientSession, url: str) -> Session:
        """Raises UnavailableError."""
        try:
            socket = await client.ws_connect(url, max_msg_size=MAX_FRAME_BYTES)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnavailableError(f"environment.openenv {url}: cannot connect: {error}") from None
        return cls(url, socket)

    async def ask(self, what: str, data: Mapping[str, Any]) -> Observed:
        """Raises RefusedError; UnavailableError for a server that is gone or speaks otherwise."""
        with suppress(ConnectionError):  # what it said last, or its end, is read below
            await self._socket.send_str(json.dumps({"type": what, "data": data}))
        frame = await self._next(what)
        if frame.type == "error":
            said = self._parsed(_ErrorData, json.dumps(frame.data))
            faults = [
                f"{'.'.join(map(str, fault.get('loc') or []))}: {fault.get('msg')}"  # type: ignore[arg-type]
                for fault in said.errors
            ]
            raise RefusedError(said.code, "; ".join(faults) or said.message)
        if frame.type != "observation":
            raise self._fault(f"answers {what} with {frame.type[:40]!r} instead of an observation")
        return self._parsed(Observed, json.dumps(frame.data))

    async def close(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.send_str('{"type": "close"}')
                await self._socket.close()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _next(self, what: str) -> _Frame:
        message = await self._frames.get()
        if message is None:
            code = self._socket.close_code
            raise self._fault(f"ended the connection while it was asked to {what} (code {code})")
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise self._fault(f"answers {what} with what is no text: {message.data!r:.200}")
        return self._parsed(_Frame, message.data)

    async def _read(self) -> None:
        async for message in self._socket:
            await self._frames.put(message)
        await self._frames.put(None)

    def _parsed(self, model: type[Model], text: str) -> Model:
        try:
            return parse(model, text.encode("utf-8", "replace"))
        except CallError as error:
            raise self._fault(str(error)) from None

    def _fault(self, words: str) -> UnavailableError:
        return UnavailableError(f"environment.openenv {self._url}: {words}")
