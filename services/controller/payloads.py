"""Where payloads lie: scored groups (tokens, log-probabilities, rewards) and archived records.

Each is named by its sha256 and its place (`pack.py`), and is durable before a record names it.
`run.payloads` says where: nothing for the run folder, a folder, or a bucket.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from services.controller.disk import (
    CLOSE_SECONDS,
    DISK_SECONDS,
    NoRoomError,
    drop_partials,
    told_when_full,
    write_durably,
)
from services.controller.pack import MIB, Place, place_of
from trimaran.call_thread import Disk
from trimaran.errors import InputError
from trimaran.places import is_bucket, sync
from trimaran.store import Store

OWNER_NAME = "owner"
"""Of what says whose a place is, beside the payloads."""
RESERVE_BYTES = 64 * MIB
"""Left free for the store, the logs and whoever else writes to that disk."""


def payload_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class PayloadStore(Protocol):
    """Files, and the payloads in them by name. Any call may raise UnavailableError.

    Example:
        payloads = open_payloads(config.run.payloads, run_folder, run_id)
        digest = payload_digest(b"tokens")
        await payloads.write({digest: b"tokens"})
        await payloads.read(digest) == b"tokens"
    """

    async def write(self, files: Mapping[str, bytes]) -> None:
        """File -> data. When it returns, all of them are durable, and whole.

        Raises NoRoomError where they do not fit; they may be written again then.
        """
        ...

    async def read(self, name: str) -> bytes:
        """A payload. Raises MissingPayloadError when it is gone, InputError when it was altered."""
        ...

    async def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        ...

    async def delete(self, files: Set[str]) -> None:
        """Those that are there."""
        ...

    async def claim(self, owner: str) -> str:
        """Makes the place the owner's unless it is somebody's; whose it is then."""
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...


async def claim_payloads(
    payloads: PayloadStore, place: str, run_id: str, epoch: int, store: Store
) -> None:
    """Before a controller writes to a place outside the run folder, where a run of another manager
    or folder may have the same id: each would delete what it does not know.

    The run's store keeps a random name, and the place says by it whose it is. Raises InputError where
    it is another run's.
    """
    key = f"payloads_owner/{run_id}"
    record = await store.get(key)
    owner = record.value if record else secrets.token_hex(16)
    if record is None:  # first the record: a place that is ours never seems to be another's
        await store.put_fenced({key: owner}, run_id, epoch)
    if await payloads.claim(owner) != owner:
        raise InputError(
            f"run.payloads: {place}: holds the payloads of another run called {run_id}, which has"
            " another store; start this run again, under another run.name or with a run.payloads of"
            " its own"
        )


def open_payloads(url: str | None, run_folder: Path, run_id: str) -> PayloadStore:
    """Of one run. `url` is `run.payloads`."""
    if url is None:
        return FolderPayloads(run_folder / "payloads")
    if not is_bucket(url):
        return FolderPayloads(Path(url.removeprefix("file://")) / run_id)
    try:  # late: few runs use a bucket, and its library is an extra
        from services.controller.bucket import BucketPayloads
    except ImportError as error:
        raise InputError(
            f"run.payloads: {url}: {error.name} is missing; pip install 'trimaran[bucket]'"
        ) from None

    return BucketPayloads(url, run_id)


def checked(data: bytes, digest: str, path: str) -> bytes:
    """The data. Raises InputError when it has another digest."""
    if payload_digest(data) != digest:
        raise InputError(f"{path}: payload does not match its digest; it was altered")
    return data


class MissingPayloadError(InputError):
    """A payload is not there: never written, lost or collected."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: payload is missing; whatever needs it, a resume or a replay, cannot go on"
        )


class FolderPayloads:
    """On a local disk, or a network file system.

    Example: FolderPayloads(run_folder / "payloads")
    """

    def __init__(
        self, folder: Path, reserve: int = RESERVE_BYTES, timeout: float = DISK_SECONDS
    ) -> None:
        """`reserve`: bytes that stay free on the disk. `timeout`: seconds, of one call."""
        self._folder, self._reserve = folder, reserve
        self._disk = Disk(folder, timeout)
        self._has_written = False

    async def write(self, files: Mapping[str, bytes]) -> None:
        if files:
            with told_when_full(self._folder):
                await self._disk.do(lambda: self._write(files))

    async def read(self, name: str) -> bytes:
        place = place_of(name)
        path = str(self._folder / name)
        try:
            data = await self._disk.do(lambda: self._read(place))
        except FileNotFoundError:
            raise MissingPayloadError(path) from None
        return checked(data, place.digest, path)

    async def sizes(self) -> dict[str, int]:
        return await self._disk.do(self._sizes)

    async def delete(self, files: Set[str]) -> None:
        def unlink() -> None:
            for file in files:
                (self._folder / file).unlink(missing_ok=True)

        await self._disk.do(unlink)

    async def claim(self, owner: str) -> str:
        with told_when_full(self._folder):
            return await self._disk.do(lambda: self._claim(owner))

    async def close(self) -> None:
        self._disk.close(CLOSE_SECONDS)

    def _write(self, files: Mapping[str, bytes]) -> None:
        if not self._has_written:
            self._folder.mkdir(parents=True, exist_ok=True)
            drop_partials(self._folder)  # of a controller that was killed
            self._has_written = True
        self._check_room(sum(map(len, files.values())))
        for name, data in files.items():
            write_durably(self._folder / name, data)
        sync(self._folder)

    def _read(self, place: Place) -> bytes:
        with (self._folder / place.file).open("rb") as file:
            file.seek(place.start)
            return file.read(place.size)

    def _claim(self, owner: str) -> str:
        path = self._folder / OWNER_NAME
        self._folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            own = self._folder / f"{OWNER_NAME}.{owner}"
            write_durably(own, owner.encode())
            with suppress(FileExistsError):  # another was faster
                os.link(own, path)
            own.unlink()
            sync(self._folder)
        return path.read_text(encoding="ascii")

    def _check_room(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < num_bytes + self._reserve:
            raise NoRoomError(
                f"{self._folder}: its disk has only {free / MIB:.1f} MiB left, of which"
                f" {self._reserve / MIB:g} MiB are held in reserve; make room there"
            )

    def _sizes(self) -> dict[str, int]:
        if not self._folder.exists():
            return {}
        with os.scandir(self._folder) as found:
            return {e.name: e.stat().st_size for e in found if not e.name.startswith(OWNER_NAME)}
