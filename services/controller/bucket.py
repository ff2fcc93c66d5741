"""Payloads in an object store: Amazon S3, whatever speaks its protocol, Google's or Azure's.

Through obstore, the Python door of Rust's object_store. Local folders do without it: a payload must
be on the disk before its record, and the library's local store does not wait for that.

Where and as whom stands in the variables that the vendors' own tools read (AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS, …), never in a
run's configuration. http instead of https needs AWS_ALLOW_HTTP=true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Set
from contextlib import suppress
from typing import TypeVar

from obstore.exceptions import AlreadyExistsError, BaseError

from services.controller.pack import place_of
from services.controller.payloads import OWNER_NAME, MissingPayloadError, checked
from trimaran.errors import UnavailableError, first_error
from trimaran.places import bucket_store

Result = TypeVar("Result")

BUCKET_SECONDS = 60.0
"""For one call, all its tries together."""
NUM_AT_A_TIME = 16
"""Writes under way."""


class BucketPayloads:
    """One object a file, under the run's id.

    Example: BucketPayloads("s3://models/payloads", "addition-20261120-120000")
    """

    def __init__(self, url: str, run_id: str, timeout: float = BUCKET_SECONDS) -> None:
        """`timeout`: seconds. Raises InputError for an URL that is not an object store's."""
        self._place, self._timeout = f"{url.rstrip('/')}/{run_id}", timeout
        self._writing = asyncio.Semaphore(NUM_AT_A_TIME)
        self._store = bucket_store(self._place, "run.payloads", timeout)

    async def write(self, files: Mapping[str, bytes]) -> None:
        async def put(name: str, data: bytes) -> None:
            async with self._writing:
                await self._store.put_async(name, data)

        async def put_all() -> None:
            async with asyncio.TaskGroup() as tasks:
                for name, data in files.items():
                    tasks.create_task(put(name, data))

        await self._call(put_all())

    async def read(self, name: str) -> bytes:
        place, path = place_of(name), f"{self._place}/{name}"

        async def get() -> bytes:
            try:
                if place.size is None:
                    answer = await self._store.get_async(place.file)
                    return bytes(await answer.bytes_async())
                return bytes(
                    await self._store.get_range_async(
                        place.file, start=place.start, length=place.size
                    )
                )
            except FileNotFoundError:
                raise MissingPayloadError(path) from None

        return checked(await self._call(get()), place.digest, path)

    async def sizes(self) -> dict[str, int]:
        async def list_all() -> dict[str, int]:
            stream = self._store.list()
            found = {meta["path"]: meta["size"] async for page in stream for meta in page}
            return {name: size for name, size in found.items() if name != OWNER_NAME}

        return await self._call(list_all())

    async def delete(self, files: Set[str]) -> None:
        if files:
            await self._call(self._store.delete_async(sorted(files)))

    async def claim(self, owner: str) -> str:
        async def get() -> str:
            answer = await self._store.get_async(OWNER_NAME)
            return bytes(await answer.bytes_async()).decode()

        async def get_or_put() -> str:
            try:
                return await get()
            except FileNotFoundError:
                with suppress(AlreadyExistsError):
                    await self._store.put_async(OWNER_NAME, owner.encode(), mode="create")
                return await get()

        return await self._call(get_or_put())

    async def close(self) -> None:
        """The library closes its connections by itself."""

    async def _call(self, work: Awaitable[Result]) -> Result:
        try:
            async with asyncio.timeout(self._timeout):
                return await work
        except TimeoutError:
            reason = f"it has not answered for {self._timeout:g} s"
        except (BaseError, OSError, ExceptionGroup) as error:
            first = first_error(error) if isinstance(error, ExceptionGroup) else error
            if not isinstance(first, BaseError | OSError):
                raise
            reason = str(first).partition("\n")[0]
        raise UnavailableError(f"{self._place}: {reason}; see that the bucket is there and answers")
