"""The store on a Redis server, for the processes of several machines and for many runs.

Each call is one script on the server (`redis.lua`), so it is whole or nothing there as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trimaran.errors import OutOfOrderError, StaleEpochError
from trimaran.store.port import (
    PAGE,
    ConflictError,
    Entry,
    Lease,
    Record,
    TrimmedError,
    check_expected,
    decode_value,
    encode_value,
)
from trimaran.store.redis_link import RedisLink
from trimaran.store.redis_url import CALL_SECONDS, RedisUrl


class RedisStore:
    """A `Store` under a prefix of a server's keys. It belongs to the event loop of its first call.

    Example: store = RedisStore("redis://127.0.0.1:6379/0?prefix=demo")
    """

    def __init__(self, url: str, timeout: float = CALL_SECONDS) -> None:
        """`timeout`: seconds for a call, in which a lost connection is made again."""
        self._link = RedisLink(RedisUrl.parse(url), timeout)

    @property
    def durability(self) -> str:
        return self._link.durability

    async def open(self, make: bool = True) -> bool:
        """Checks the server's settings. False where there is no store yet and none is to be made.

        Raises InputError for settings under which a crash loses data, unless the URL accepts them.
        """
        answer = await self._link.read("open", int(make))
        return answer.status != "absent"

    async def close(self) -> None:
        await self._link.close()

    async def get(self, key: str) -> Record | None:
        version, text = (await self._link.read("get", key)).values
        return self._record(key, version, text) if int(version) else None

    async def put(self, key: str, value: Any, expected: int | None = None) -> int:
        sent = key, encode_value(value), _or_empty(expected)
        status, values = await self._link.write("put", *sent)
        if status == "refused":
            check_expected(key, expected, int(values[0]))
        return int(values[0])

    async def delete(self, key: str, expected: int | None = None) -> None:
        status, values = await self._link.write("delete", key, _or_empty(expected))
        if status == "refused":
            check_expected(key, expected, int(values[0]))

    async def list_records(
        self, prefix: str = "", after: str = "", limit: int = PAGE
    ) -> tuple[tuple[str, Record], ...]:
        (rows,) = (await self._link.read("list", prefix, after, limit)).values
        found = ((key.decode(), version, text) for key, version, text in rows)
        return tuple((key, self._record(key, version, text)) for key, version, text in found)

    async def put_fenced(self, records: Mapping[str, Any], name: str, epoch: int) -> None:
        rows = _flat((key, encode_value(value)) for key, value in records.items())
        status, values = await self._link.write("put_fenced", name, epoch, *rows)
        if status == "refused":
            raise StaleEpochError(f"run {name}: epoch {epoch} was replaced by {int(values[0])}")

    async def extend(self, stream: str, values: Sequence[Any], after: int | None = None) -> int:
        texts = [encode_value(value) for value in values]
        status, answer = await self._link.write("extend", stream, _or_empty(after), *texts)
        if status == "refused":
            raise OutOfOrderError(f"{stream}: ends at {int(answer[0])}, not at {after}")
        return int(answer[0])

    async def read(
        self, stream: str, after: int | None = None, limit: int = PAGE
    ) -> tuple[Entry, ...]:
        status, values = await self._link.read("read", stream, _or_empty(after), limit)
        if status == "refused":
            raise TrimmedError(stream, after or 0, int(values[0]))
        flat = values[0]
        numbers = map(int, flat[::2])
        return tuple(
            (number, decode_value(text, self._where(f"{stream} {number}")))
            for number, text in zip(numbers, flat[1::2], strict=True)
        )

    async def last(self, stream: str) -> int:
        return int((await self._link.read("last", stream)).values[0])

    async def trim(self, stream: str, through: int) -> None:
        await self._link.write("trim", stream, through)

    async def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        status, values = await self._link.write("acquire", name, holder, seconds)
        return None if status == "refused" else Lease(name, holder, int(values[0]))

    async def renew(self, lease: Lease, seconds: float) -> None:
        sent = lease.name, lease.holder, lease.epoch, seconds
        if (await self._link.write("renew", *sent)).status == "refused":
            raise ConflictError(f"lease {lease.name}: {lease.holder} does not hold it any more")

    async def release(self, lease: Lease) -> None:
        await self._link.write("release", lease.name, lease.holder, lease.epoch)

    async def holder(self, name: str) -> Lease | None:
        epoch, holder = (await self._link.read("holder", name)).values
        return Lease(name, holder.decode(), int(epoch)) if int(epoch) else None

    async def next_epoch(self, name: str) -> int:
        return int((await self._link.write("next_epoch", name)).values[0])

    async def newest_epoch(self, name: str) -> int:
        return int((await self._link.read("newest_epoch", name)).values[0])

    async def delete_all(self, prefix: str = "") -> None:
        await self._link.write("delete_all", prefix)

    def _record(self, key: str, version: bytes, text: bytes) -> Record:
        return Record(decode_value(text, self._where(key)), int(version))

    def _where(self, name: str) -> str:
        return f"{self._link.name}: {name}"


def _or_empty(number: int | None) -> str:
    """How the script knows that none was given."""
    return "" if number is None else str(number)


def _flat(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [text for pair in pairs for text in pair]
