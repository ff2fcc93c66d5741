"""Files at a place that several hosts see: a folder on a shared disk, or a bucket.

    place = open_place("s3://models/runs", "run.checkpoints")
    place.upload(Path("/tmp/shard"), "demo/checkpoints/step-00010/shard")
    place.read("demo/checkpoints/step-00010/state.json")

A name is a path below the place, with slashes. A file is there whole or not at all. Calls block, so
call them in a thread.

Where a bucket answers, and for whom, stands in the variables that the vendors' own tools read
(AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …), never in a configuration. http needs AWS_ALLOW_HTTP=true.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from trimaran.errors import DeadlineError, InputError, NotFoundError, UnavailableError
from trimaran.host.append_file import FULL
from trimaran.host.file_lock import try_lock

logger = logging.getLogger(__name__)

MIB = 1 << 20
CALL_SECONDS = 60.0
PART_BYTES = 16 * MIB
"""A part of an upload. Eight are under way at a time, so one takes 128 MiB of memory."""
PARTS_AT_A_TIME = 8
FETCHED_AT_A_TIME = 16
"""Parts of a file."""
FETCH_SECONDS = 3600.0
POLL_SECONDS = 0.2
MOST_PARTS = 10_000
"""S3 takes no more of one file."""
REFUSED = ("401 Unauthorized", "403 Forbidden")


def is_bucket(place: str | None) -> bool:
    """Rather than a folder, or nothing."""
    return place is not None and "://" in place and not place.startswith("file://")


class Place(Protocol):
    """Any call may raise UnavailableError, and InputError where credentials or rights are missing."""

    url: str

    def upload(self, source: Path, name: str) -> None:
        """The file `source`, as `name`. When it returns, it is durable."""
        ...

    def write(self, data: bytes, name: str) -> None:
        """The same of a few bytes."""
        ...

    def create(self, data: bytes, name: str) -> None:
        """The same, unless it is there; of several at once one wins."""
        ...

    def read(self, name: str) -> bytes:
        """All of it. Raises NotFoundError."""
        ...

    def read_part(self, name: str, start: int, length: int) -> memoryview:
        """Bytes `start` to `start + length`, or to its end. Raises NotFoundError."""
        ...

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Bytes by name, of all in the folder `prefix`."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Those that are there."""
        ...


def open_place(url: str, key: str, seconds: float = CALL_SECONDS) -> Place:
    """`key`: of the configuration, for errors. `seconds`: of one request to a bucket, all its tries
    together. Raises InputError."""
    if not is_bucket(url):
        return FolderPlace(Path(url.removeprefix("file://")), key)
    return BucketPlace(url.rstrip("/"), key, bucket_store(url, key, seconds))


def bucket_store(url: str, key: str, seconds: float = CALL_SECONDS) -> Any:
    """obstore's, as `open_place` opens it. Raises InputError."""
    try:  # late: few runs use a bucket, and its library is an extra
        from obstore.store import from_url
    except ImportError as error:
        raise InputError(
            f"{key}: {url}: {error.name} is missing; pip install 'trimaran[bucket]'"
        ) from None
    limit = timedelta(seconds=seconds)
    allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true"
    try:
        return from_url(
            url,
            client_options={"timeout": limit, "allow_http": allow_http},
            retry_config={"max_retries": 1000, "retry_timeout": limit},
        )
    except Exception as error:  # the library has many kinds, and all mean the URL or the variables
        raise InputError(f"{key}: {url}: {_first_line(error)}") from None


def sync(path: Path) -> None:
    """A file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(temporary: Path, folder: Path) -> None:
    """A folder whose files are on the disk (`sync`), under its own name, whatever stood there before.

    What stood there is `NAME.replaced` until the new one has the name: wherever it is broken off, a
    whole folder lies under one of the two. Raises OSError where the new one cannot have the name; what
    stood there has it again then.
    """
    sync(temporary)
    before = folder.with_name(f"{folder.name}.replaced")
    if folder.exists():
        if before.exists():  # an earlier replacement was broken off
            discard(before)
        folder.rename(before)
    try:
        temporary.rename(folder)
    except OSError:
        if before.exists():
            before.rename(folder)
        raise
    sync(folder.parent)
    if before.exists():
        discard(before)


def discard(folder: Path) -> None:
    """Removes a replaced folder. One that cannot be removed is moved aside, out of the way of the next,
    and a warning names it: on NFS a file that is open somewhere stays until it is closed."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        with suppress(OSError):  # then it stays where it is
            folder = folder.rename(folder.with_name(f"{folder.name}-{secrets.token_hex(4)}"))
        logger.warning("%s: cannot be removed (%s) and takes room; remove it", folder, error)


class FolderPlace:
    """Example: FolderPlace(Path("/shared/runs"), "run.checkpoints").read("demo/state.json")"""

    def __init__(self, folder: Path, key: str) -> None:
        self.url, self._folder, self._key = str(folder), folder, key

    def upload(self, source: Path, name: str) -> None:
        with self._named_errors(name), source.open("rb") as file:
            self._put(name, iter(lambda: file.read(PART_BYTES), b""))

    def write(self, data: bytes, name: str) -> None:
        with self._named_errors(name):
            self._put(name, [data])

    def create(self, data: bytes, name: str) -> None:
        own = f".{secrets.token_hex(8)}"
        self.write(data, own)
        with self._named_errors(name), suppress(FileExistsError):
            os.link(self._folder / own, self._folder / name)
        self.delete([own])

    def read(self, name: str) -> bytes:
        with self._named_errors(name):
            return (self._folder / name).read_bytes()

    def read_part(self, name: str, start: int, length: int) -> memoryview:
        with self._named_errors(name), (self._folder / name).open("rb") as file:
            return memoryview(os.pread(file.fileno(), length, start))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        found: dict[str, int] = {}
        with self._named_errors(prefix):
            for path in (self._folder / prefix).rglob("*"):
                if path.is_file() and not path.name.startswith("."):  # one is being written
                    found[path.relative_to(self._folder).as_posix()] = path.stat().st_size
        return found

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with self._named_errors(name):
                (self._folder / name).unlink(missing_ok=True)

    def _put(self, name: str, parts: Iterable[bytes]) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with partial.open("wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)

    @contextmanager
    def _named_errors(self, name: str) -> Generator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(f"{self._key}: {self.url}/{name}: is not there") from error
        except PermissionError as error:
            raise InputError(f"{self._key}: {self.url}/{name}: {error.strerror}") from None
        except OSError as error:
            remedy = "; make room there" if error.errno in FULL else ""
            raise UnavailableError(
                f"{self._key}: {self.url}/{name}: {error.strerror}{remedy}"
            ) from None


class BucketPlace:
    """Example: open_place("s3://models/runs", "run.checkpoints").sizes("demo/checkpoints/")"""

    def __init__(self, url: str, key: str, store: Any) -> None:
        """Use `open_place`. `store`: obstore's."""
        self.url, self._key, self._store = url, key, store

    def upload(self, source: Path, name: str) -> None:
        part = max(PART_BYTES, -(-source.stat().st_size // MOST_PARTS))
        with self._named_errors(name):
            self._store.put(name, source, chunk_size=part, max_concurrency=PARTS_AT_A_TIME)

    def write(self, data: bytes, name: str) -> None:
        with self._named_errors(name):
            self._store.put(name, data)

    def create(self, data: bytes, name: str) -> None:
        from obstore.exceptions import AlreadyExistsError

        with self._named_errors(name), suppress(AlreadyExistsError):
            self._store.put(name, data, mode="create")

    def read(self, name: str) -> bytes:
        with self._named_errors(name):
            return bytes(self._store.get(name).bytes())

    def read_part(self, name: str, start: int, length: int) -> memoryview:
        with self._named_errors(name):
            return memoryview(self._store.get_range(name, start=start, length=length))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        with self._named_errors(prefix):
            pages = self._store.list(prefix.rstrip("/") or None)
            return {meta["path"]: meta["size"] for page in pages for meta in page}

    def delete(self, names: Iterable[str]) -> None:
        if listed := sorted(names):
            with self._named_errors(listed[0]):
                self._store.delete(listed)

    @contextmanager
    def _named_errors(self, name: str) -> Generator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        place = f"{self._key}: {self.url}/{name}"
        refusals = (PermissionDeniedError, UnauthenticatedError, PermissionError)
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(f"{place}: is not there") from error
        except (BaseError, OSError) as error:
            # Of a listing the library says in words alone that it was refused.
            if isinstance(error, refusals) or any(word in str(error) for word in REFUSED):
                raise InputError(
                    f"{place}: {_first_line(error)}; give this host credentials that may"
                ) from None
            raise UnavailableError(
                f"{place}: {_first_line(error)}; see that the bucket is there and answers"
            ) from None


@contextmanager
def host_lock(path: Path, timeout: float, what: str) -> Generator[None]:
    """One process of this host at a time. The system frees the lock of one that dies. `timeout`:
    seconds. Raises DeadlineError, which says `what` another process does, and as `try_lock`."""
    deadline = time.monotonic() + timeout
    with path.open("a") as lock:
        while not try_lock(lock.fileno(), path):
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"{what}: another process of this host has been at it for {timeout:g} s"
                )
            time.sleep(POLL_SECONDS)
        yield


def fetch_file(place: Place, name: str, target: Path) -> None:
    """In parts side by side, straight to the disk; memory is bounded. `target` is there once it is
    whole. Of a host's processes that want the same file one fetches it, and the others wait for
    FETCH_SECONDS at most. Raises NotFoundError.

    Example: fetch_file(place, "samples/step-00010.jsonl", folder / "samples/step-00010.jsonl")
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    what = f"fetching {place.url}/{name}"
    with host_lock(target.with_name(f".{target.name}.lock"), FETCH_SECONDS, what):
        if target.is_file():
            return
        size = place.sizes(name.rpartition("/")[0]).get(name)
        if size is None:
            raise NotFoundError(f"{place.url}/{name}: is not there")
        partial = target.with_name(f"{target.name}.partial")
        with partial.open("wb") as file, ThreadPoolExecutor(FETCHED_AT_A_TIME) as pool:
            file.truncate(size)

            def bring(start: int) -> None:
                data = place.read_part(name, start, min(PART_BYTES, size - start))
                write_at(file.fileno(), data, start)

            list(pool.map(bring, range(0, size, PART_BYTES)))
        partial.replace(target)


def write_at(descriptor: int, data: memoryview, start: int) -> None:
    """All of it, from byte `start` on."""
    while data:
        written = os.pwrite(descriptor, data, start)
        data, start = data[written:], start + written


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
