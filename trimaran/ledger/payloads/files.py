"""Where payloads lie: scored groups (tokens, log-probabilities, rewards) and archived records.

Each is named by its sha256 and its place (`pack.py`), and is durable before a record names it.
`run.payloads` says where: nothing for the run folder, a folder, or a bucket.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import TypeVar

from trimaran.errors import InputError, NotFoundError, UnavailableError
from trimaran.host.call_thread import Disk
from trimaran.host.places import FolderPlace, Place, is_bucket, open_place
from trimaran.ledger.disk import CLOSE_SECONDS, DISK_SECONDS, NoRoomError
from trimaran.ledger.payloads.pack import MIB, place_of
from trimaran.store import Store

Result = TypeVar("Result")

KEY = "run.payloads"
OWNER_NAME = "owner"
"""The file that says whose a place is, beside the payloads."""
RESERVE_BYTES = 64 * MIB
"""Left free for the store, the logs and other writers to that disk."""
BUCKET_SECONDS = 60.0
"""For one request to a bucket, all its tries together."""
BUCKET_CALLS = 16
"""Requests to a bucket at a time. A folder has one, so that files are written in order."""


def payload_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class MissingPayloadError(InputError):
    """A payload is not there: never written, lost or collected."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: payload is missing; whatever needs it, a resume or a replay, cannot go on"
        )


class Payloads:
    """Files at a place, and the payloads in them by name. Any call may raise UnavailableError.

    Example:
        payloads = open_payloads(config.run.payloads, run_folder, run_id)
        digest = payload_digest(b"tokens")
        await payloads.write({digest: b"tokens"})
        await payloads.read(digest) == b"tokens"
    """

    def __init__(self, place: Place, timeout: float, num_calls: int) -> None:
        """`timeout`: seconds of one call. `num_calls`: at a time."""
        self._place = place
        self._disk = Disk(place.url, timeout, num_threads=num_calls)

    async def write(self, files: Mapping[str, bytes]) -> None:
        """File -> data. When it returns, all of them are durable, and whole. They may be written again."""
        writes = (
            self._call(lambda name=name, data=data: self._place.write(data, name))
            for name, data in files.items()
        )
        try:
            await asyncio.gather(*writes)
        except NotFoundError as error:  # the bucket itself
            raise UnavailableError(f"{error}; see that the bucket is there and answers") from None

    async def read(self, name: str) -> bytes:
        """A payload. Raises MissingPayloadError when it is gone, InputError when it was altered."""
        place, path = place_of(name), f"{self._place.url}/{name}"

        def read() -> bytes:
            if place.size is None:
                return self._place.read(place.file)
            return bytes(self._place.read_part(place.file, place.start, place.size))

        try:
            return checked(await self._call(read), place.digest, path)
        except NotFoundError:
            raise MissingPayloadError(path) from None

    async def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        sizes = await self._call(self._place.sizes)
        return {name: size for name, size in sizes.items() if name != OWNER_NAME}

    async def delete(self, files: Set[str]) -> None:
        """Those that are there."""
        await self._call(lambda: self._place.delete(files))

    async def claim(self, owner: str) -> str:
        """Makes the place the owner's unless it is another's; whose it is then."""

        def claim() -> str:
            self._place.create(owner.encode(), OWNER_NAME)
            return self._place.read(OWNER_NAME).decode()

        return await self._call(claim)

    async def close(self) -> None:
        """Idempotent."""
        self._disk.close(CLOSE_SECONDS)

    async def _call(self, work: Callable[[], Result]) -> Result:
        return await self._disk.do(work)


class FolderPayloads(Payloads):
    """On a local disk, or a network file system.

    Example: FolderPayloads(run_folder / "payloads")
    """

    def __init__(
        self, folder: Path, reserve: int = RESERVE_BYTES, timeout: float = DISK_SECONDS
    ) -> None:
        """`reserve`: bytes that stay free on the disk."""
        super().__init__(FolderPlace(folder, KEY), timeout, num_calls=1)
        self._folder, self._reserve = folder, reserve
        self._has_written = False

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Raises NoRoomError, too, where the reserve would be touched."""
        if files:
            await self._call(lambda: self._make_ready(sum(map(len, files.values()))))
            await super().write(files)

    def _make_ready(self, num_bytes: int) -> None:
        if not self._has_written:
            self._folder.mkdir(parents=True, exist_ok=True)
            for partial in self._folder.glob(".*"):  # of a controller that was killed
                partial.unlink(missing_ok=True)
            self._has_written = True
        free = shutil.disk_usage(self._folder).free
        if free < num_bytes + self._reserve:
            raise NoRoomError(
                f"{self._folder}: its disk has only {free / MIB:.1f} MiB left, of which"
                f" {self._reserve / MIB:g} MiB are held in reserve; make room there"
            )


async def claim_payloads(
    payloads: Payloads, place: str, run_id: str, epoch: int, store: Store
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


def open_payloads(url: str | None, run_folder: Path, run_id: str) -> Payloads:
    """The payloads of one run. `url` is `run.payloads`."""
    if url is None:
        return FolderPayloads(run_folder / "payloads")
    if not is_bucket(url):
        return FolderPayloads(Path(url.removeprefix("file://")) / run_id)
    place = open_place(f"{url.rstrip('/')}/{run_id}", KEY, BUCKET_SECONDS)
    # The library gives a request up by itself, and says why.
    return Payloads(place, BUCKET_SECONDS + CLOSE_SECONDS, BUCKET_CALLS)


def checked(data: bytes, digest: str, path: str) -> bytes:
    """The data. Raises InputError when it has another digest."""
    if payload_digest(data) != digest:
        raise InputError(f"{path}: payload does not match its digest; it was altered")
    return data
