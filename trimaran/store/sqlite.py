"""The store in one SQLite file, for several processes of one machine."""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from trimaran.store.sqlite_file import CLOSE_SECONDS, DISK_SECONDS, SqliteFile, SqliteReader

LAST_KEY = "\U0010ffff"
"""No key of ours goes on with it."""
PUT = (
    "INSERT INTO records (key, value, version) VALUES (?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version"
)
DRAW = (
    "INSERT INTO epochs VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1"
    " RETURNING epoch"
)
TABLES = {"records": "key", "streams": "stream", "trims": "stream", "epochs": "name"} | {
    "leases": "name"
}
"""Each with the column of its names."""


class SqliteStore:
    """A `Store` in one file. Each process opens its own; the file is opened by the first call.

    Example: store = SqliteStore(Path("runs/demo-20261120-120000/store.sqlite"))
    """

    durability = ""

    def __init__(
        self,
        path: Path,
        timeout: float = DISK_SECONDS,
        close_timeout: float = CLOSE_SECONDS,
        *,
        is_read_only: bool = False,
    ) -> None:
        """Seconds: as in `SqliteFile`. `is_read_only`: as `SqliteReader` does it."""
        kind = SqliteReader if is_read_only else SqliteFile
        self.file = kind(path, timeout, close_timeout)

    async def open(self, make: bool = True) -> bool:
        """Now, and not with the first call: what is wrong with the file is known at the start.

        False where there is no file yet and none is to be made.
        """
        if not make and not self.file.path.is_file():
            return False
        await self.file.call(lambda connection: None)
        return True

    async def close(self) -> None:
        await self.file.close()

    async def get(self, key: str) -> Record | None:
        rows = await self._select("SELECT value, version FROM records WHERE key = ?", key)
        return self._record(key, *rows[0]) if rows else None

    async def put(self, key: str, value: Any, expected: int | None = None) -> int:
        text = encode_value(value)

        def write(connection: sqlite3.Connection) -> int:
            if expected is not None:
                check_expected(key, expected, _record_version(connection, key))
            version = _tick(connection)
            connection.execute(PUT, (key, text, version))
            return version

        return await self.file.write(write)

    async def delete(self, key: str, expected: int | None = None) -> None:
        def write(connection: sqlite3.Connection) -> None:
            check_expected(key, expected, _record_version(connection, key))
            connection.execute("DELETE FROM records WHERE key = ?", (key,))

        await self.file.write(write)

    async def list_records(
        self, prefix: str = "", after: str = "", limit: int = PAGE
    ) -> tuple[tuple[str, Record], ...]:
        rows = await self._select(
            "SELECT key, value, version FROM records"
            " WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?",
            *(prefix, after, prefix + LAST_KEY, limit),
        )
        return tuple((key, self._record(key, value, version)) for key, value, version in rows)

    async def put_fenced(self, records: Mapping[str, Any], name: str, epoch: int) -> None:
        rows = [(key, encode_value(value)) for key, value in records.items()]

        def write(connection: sqlite3.Connection) -> None:
            newest = _newest_epoch(connection, name)
            if epoch < newest:
                raise StaleEpochError(f"run {name}: epoch {epoch} was replaced by {newest}")
            for row in rows:
                connection.execute(PUT, (*row, _tick(connection)))

        await self.file.write(write)

    async def extend(self, stream: str, values: Sequence[Any], after: int | None = None) -> int:
        texts = [encode_value(value) for value in values]

        def write(connection: sqlite3.Connection) -> int:
            last = _last(connection, stream)
            if after is not None and after != last:
                raise OutOfOrderError(f"{stream}: ends at {last}, not at {after}")
            rows = [(stream, last + i, text) for i, text in enumerate(texts, start=1)]
            connection.executemany("INSERT INTO streams VALUES (?, ?, ?)", rows)
            return last + len(rows)

        return await self.file.write(write)

    async def read(
        self, stream: str, after: int | None = None, limit: int = PAGE
    ) -> tuple[Entry, ...]:
        def select(connection: sqlite3.Connection) -> list[tuple[int, str]]:
            # After the entries: what is trimmed between the two is then seen.
            rows = connection.execute(
                "SELECT sequence, value FROM streams WHERE stream = ? AND sequence > ?"
                " ORDER BY sequence LIMIT ?",
                (stream, after or 0, limit),
            ).fetchall()
            through = _trimmed(connection, stream)
            if after is not None and after < through:
                raise TrimmedError(stream, after, through)
            return rows

        rows = await self.file.call(select)
        return tuple((n, decode_value(text, self._where(f"{stream} {n}"))) for n, text in rows)

    async def last(self, stream: str) -> int:
        return await self.file.call(lambda connection: _last(connection, stream))

    async def trim(self, stream: str, through: int) -> None:
        def write(connection: sqlite3.Connection) -> None:
            end = min(through, _last(connection, stream))
            if end > _trimmed(connection, stream):
                connection.execute(
                    "DELETE FROM streams WHERE stream = ? AND sequence <= ?", (stream, end)
                )
                connection.execute("INSERT OR REPLACE INTO trims VALUES (?, ?)", (stream, end))

        await self.file.write(write)

    async def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        def write(connection: sqlite3.Connection) -> Lease | None:
            held = _held(connection, name)
            if held and held.holder != holder:
                return None
            (epoch,) = connection.execute(DRAW, (name,)).fetchone()
            connection.execute(
                "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?)",
                (name, holder, epoch, _boot(), time.monotonic() + seconds),
            )
            return Lease(name, holder, epoch)

        return await self.file.write(write)

    async def renew(self, lease: Lease, seconds: float) -> None:
        def write(connection: sqlite3.Connection) -> None:
            changed = connection.execute(
                "UPDATE leases SET boot = ?, until = ? WHERE name = ? AND epoch = ? AND holder = ?",
                (_boot(), time.monotonic() + seconds, lease.name, lease.epoch, lease.holder),
            ).rowcount
            if not changed:
                raise ConflictError(f"lease {lease.name}: {lease.holder} does not hold it any more")

        await self.file.write(write)

    async def release(self, lease: Lease) -> None:
        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM leases WHERE name = ? AND epoch = ? AND holder = ?",
                (lease.name, lease.epoch, lease.holder),
            )

        await self.file.write(write)

    async def holder(self, name: str) -> Lease | None:
        return await self.file.call(lambda connection: _held(connection, name))

    async def next_epoch(self, name: str) -> int:
        def write(connection: sqlite3.Connection) -> int:
            return connection.execute(DRAW, (name,)).fetchone()[0]

        return await self.file.write(write)

    async def newest_epoch(self, name: str) -> int:
        return await self.file.call(lambda connection: _newest_epoch(connection, name))

    async def delete_all(self, prefix: str = "") -> None:
        def write(connection: sqlite3.Connection) -> None:
            for table, column in TABLES.items():
                connection.execute(
                    f"DELETE FROM {table} WHERE {column} >= ? AND {column} < ?",
                    (prefix, prefix + LAST_KEY),
                )

        await self.file.write(write)

    async def _select(self, statement: str, *values: Any) -> list[Any]:
        return await self.file.call(lambda c: c.execute(statement, values).fetchall())

    def _record(self, key: str, text: str, version: int) -> Record:
        return Record(decode_value(text, self._where(key)), version)

    def _where(self, name: str) -> str:
        return f"{self.file.path}: {name}"


def _tick(connection: sqlite3.Connection) -> int:
    """One counter for all records, so that a key that was deleted never has a version again."""
    (version,) = connection.execute(
        "UPDATE clock SET version = version + 1 RETURNING version"
    ).fetchone()
    return version


def _record_version(connection: sqlite3.Connection, key: str) -> int:
    return _number(connection, "SELECT version FROM records WHERE key = ?", key)


def _newest_epoch(connection: sqlite3.Connection, name: str) -> int:
    return _number(connection, "SELECT epoch FROM epochs WHERE name = ?", name)


def _last(connection: sqlite3.Connection, stream: str) -> int:
    last = _number(connection, "SELECT MAX(sequence) FROM streams WHERE stream = ?", stream)
    return last or _trimmed(connection, stream)


def _trimmed(connection: sqlite3.Connection, stream: str) -> int:
    return _number(connection, "SELECT through FROM trims WHERE stream = ?", stream)


def _number(connection: sqlite3.Connection, query: str, name: str) -> int:
    """0 where there is none."""
    row = connection.execute(query, (name,)).fetchone()
    return (row[0] or 0) if row else 0


def _held(connection: sqlite3.Connection, name: str) -> Lease | None:
    row = connection.execute(
        "SELECT holder, epoch FROM leases WHERE name = ? AND boot = ? AND until > ?",
        (name, _boot(), time.monotonic()),
    ).fetchone()
    return Lease(name, *row) if row else None


@functools.cache
def _boot() -> str:
    """All processes of a machine share its monotonic clock, until it restarts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
