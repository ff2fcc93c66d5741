"""The last words of a process, for the error that its end is."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Self, TextIO

MAX_CHARS = 600
PIECE = 1 << 14


class LastWords:
    """Reads what a process writes to its standard error, and keeps the end of it.

    Example:
        async with LastWords() as words:
            process = await asyncio.create_subprocess_exec("ls", "/nowhere", stderr=words.file)
            await process.wait()
            print(await words.text())
    """

    def __init__(self) -> None:
        self._read, write = os.pipe()
        self.file: TextIO = os.fdopen(write, "w")
        self._kept = b""
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        os.set_blocking(self._read, False)
        asyncio.get_running_loop().add_reader(self._read, self._take)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.file.close()
        with suppress(BlockingIOError):
            while not self._ended.is_set():
                self._take()
        asyncio.get_running_loop().remove_reader(self._read)
        os.close(self._read)
        self._ended.set()

    async def text(self, seconds: float = 0.5) -> str:
        """In one line; waits a little for a process that is about to end."""
        self.file.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)
        return " ".join(self._kept.decode("utf-8", "replace").split())[-MAX_CHARS:]

    def _take(self) -> None:
        piece = os.read(self._read, PIECE)
        self._kept = (self._kept + piece)[-4 * MAX_CHARS :]
        if not piece:
            self._ended.set()
            asyncio.get_running_loop().remove_reader(self._read)
