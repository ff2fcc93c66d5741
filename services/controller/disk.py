"""Work on a disk that may hang or be full: in a thread of its own, with a deadline."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

from trimaran.append_file import FULL
from trimaran.call_thread import CallThread
from trimaran.errors import DeadlineError, UnavailableError

Result = TypeVar("Result")

DISK_SECONDS = 60.0
"""For one piece of work, with those that stand before it."""
CLOSE_SECONDS = 5.0
LOOK_SECONDS = 10.0


class NoRoomError(UnavailableError):
    """What is to be written does not fit until somebody, or the collection of old payloads, makes room."""


@contextmanager
def told_when_full(place: Path) -> Generator[None]:
    """A full disk is a NoRoomError that names `place`."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise NoRoomError(f"{place}: {error.strerror}; make room there") from None


class Disk:
    """One piece of work after the other, in the order in which they came, cancelled or not.

    Example: await Disk(run_folder).do(lambda: write_durably(run_folder / "state.json", data))
    """

    def __init__(self, place: Path, timeout: float = DISK_SECONDS) -> None:
        """`place`: for messages. `timeout`: seconds."""
        self._place, self._timeout = place, timeout
        self._thread = CallThread("disk")

    async def do(self, work: Callable[[], Result]) -> Result:
        """Raises NoRoomError when the disk is full, UnavailableError when it hangs."""
        try:
            with told_when_full(self._place):
                return await self._thread.wait(work, self._timeout)
        except DeadlineError:
            raise UnavailableError(
                f"{self._place}: its disk has not answered for {self._timeout:g} s;"
                " see that it works again"
            ) from None

    def close(self) -> None:
        """What was asked for is done before; a disk that hangs is left alone."""
        self._thread.stop(lambda: None, CLOSE_SECONDS)


class FreeDisk:
    """How much room a folder's disk has, asked now and then: a disk that hangs holds nobody up.

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
        disk = Disk(self._folder)
        task = asyncio.create_task(self._watch(disk))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            disk.close()

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


def drop_partials(folder: Path) -> None:
    """What `write_durably` leaves behind in a process that is killed."""
    for path in folder.glob("*.partial"):
        path.unlink(missing_ok=True)
