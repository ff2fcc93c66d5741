"""What stands between a client and its server: a network that is cut, loses answers, leads elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

SIZE = 1 << 16


class Door:
    """An address that leads to `port`. Answers are swallowed: with their connection while `mute`,
    without a sign of it while `is_blocked`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.mute = self.is_blocked = False
        self.address = 0
        self.num_swallowed = 0
        self._writers: set[asyncio.StreamWriter] = set()

    def url(self, prefix: str, options: str = "") -> str:
        return f"redis://127.0.0.1:{self.address}/0?prefix={prefix}{options}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            return
        self._writers.add(inner_writer)
        await asyncio.gather(
            self._carry(reader, inner_writer, False), self._carry(inner_reader, writer, True)
        )

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(SIZE):
                if answers and self.mute:
                    self.num_swallowed += 1
                    self.cut()
                    return
                if answers and self.is_blocked:
                    self.num_swallowed += 1
                    continue
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def door_to(port: int) -> AsyncGenerator[Door, None]:
    door = Door(port)
    server = await asyncio.start_server(door.serve, "127.0.0.1", 0)
    door.address = server.sockets[0].getsockname()[1]
    try:
        yield door
    finally:
        server.close()
        door.cut()
