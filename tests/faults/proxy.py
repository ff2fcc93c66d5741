"""A wire between pullers and the relay servers, on which the driver can do harm.

Each process that holds weights announces the address of a door here instead of
its own; what a puller says there goes on to the real relay server, and what it
answers comes back: whole, with a flipped bit, cut short, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

CHUNK_BYTES = 1 << 16


class Harm(StrEnum):
    FLIP = "flip"
    CUT = "cut"
    STALL = "stall"


@dataclass(slots=True)
class Door:
    """In front of one process's relay server, whose `Peer` the process writes to a file."""

    behind: Path
    harm: Harm | None = None
    after_bytes: int = 0
    """How much of the answers passes before the harm is done, once."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""
    _server: asyncio.Server | None = None
    _pumps: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def order(self, harm: Harm, after_bytes: int) -> None:
        self.harm, self.after_bytes = harm, after_bytes
        self.done.clear()

    def withdraw(self) -> None:
        self.harm = None

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._pumps.add(task)
        try:
            host, _, port = json.loads(self.behind.read_text())["relay"].rpartition(":")
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
            try:
                await self._between(reader, writer, there_reader, there_writer)
            finally:
                there_writer.close()
        except (OSError, asyncio.CancelledError):
            pass  # as on any wire: the other end sees its connection closed
        finally:
            writer.close()
            self._pumps.discard(task)

    async def _between(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there_reader: asyncio.StreamReader,
        there_writer: asyncio.StreamWriter,
    ) -> None:
        questions = asyncio.ensure_future(_pump(reader, there_writer))
        answers = asyncio.ensure_future(self._answer(there_reader, writer))
        try:
            await asyncio.wait({questions, answers}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in (questions, answers):
                pump.cancel()
            await asyncio.gather(questions, answers, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self.harm is not None:
                self.after_bytes -= len(data)
                if self.after_bytes < 0:
                    harm, self.harm = self.harm, None
                    self.done.set()
                    middle = len(data) // 2
                    if harm is Harm.STALL:
                        await asyncio.sleep(3600)
                    if harm is Harm.CUT:
                        writer.write(data[:middle])
                        await writer.drain()
                        return
                    data = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
            writer.write(data)
            await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
