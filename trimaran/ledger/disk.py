"""A disk that may be full: the error that says so, files that are whole or not there, and how much room is left."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from trimaran.errors import UnavailableError
from trimaran.host.append_file import FULL
from trimaran.host.call_thread import Disk

DISK_SECONDS = 60.0
"""For one piece of work, with those that stand before it."""
CLOSE_SECONDS = 5.0
LOOK_SECONDS = 10.0


class NoRoomError(UnavailableError):
    """What is to be written does not fit until an operator, or the collection of old payloads, makes room."""


@contextmanager
def naming_full_disk(place: Path) -> Generator[None]:
    """A full disk is a NoRoomError that names `place`."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise NoRoomError(f"{place}: {error.strerror}; make room there") from None


class FreeDisk:
    """How much room a folder's disk has, asked now and then: a disk that hangs holds nothing up.

    Example:
        async with FreeDisk(run.folder).watched() as disk:
            metrics.show(CONTROLLER_DISK, lambda: disk.free_bytes)
    """

    def __init__(self, folder: Path, every: float = LOOK_SECONDS) -> None:
        """`every`: seconds between two questions."""
        self._folder, self._every = folder, every
        self.free_bytes: float | None = None
        """None while the disk does not answer."""

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[FreeDisk]:
        disk = Disk(self._folder, DISK_SECONDS)
        task = asyncio.create_task(self._watch(disk))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            disk.close(CLOSE_SECONDS)

    async def _watch(self, disk: Disk) -> None:
        while True:
            try:
                self.free_bytes = await disk.do(lambda: shutil.disk_usage(self._folder).free)
            except (OSError, UnavailableError):
                self.free_bytes = None
            await asyncio.sleep(self._every)


def write_durably(path: Path, data: bytes) -> None:
    """Whole and on the disk, or not there; `places.sync` of its folder makes its name durable, too."""
    partial = Path(f"{path}.partial")
    try:
        with partial.open("wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
