"""What outlives a process: records, append-only streams and fencing epochs, in one SQLite file.

Safe for several processes on one machine. Values are JSON.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from trimaran.errors import OutOfOrderError, StaleEpochError

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS streams (
    stream TEXT NOT NULL, sequence INTEGER NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (stream, sequence)
);
CREATE TABLE IF NOT EXISTS epochs (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
"""

PUT = "INSERT INTO records VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
BUSY_TIMEOUT_SECONDS = 30.0


class SqliteStore:
    """`synchronous=FULL`: when a call returns, its data is on the disk."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        path.touch(mode=0o600)  # it holds the relay keys of the replicas
        self._connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(SCHEMA)

    def put(self, key: str, value: Any) -> None:
        self._execute(PUT, (key, _dump(value)))

    def put_fenced(self, records: Mapping[str, Any], name: str, epoch: int) -> None:
        """All records or none, in one transaction, while `epoch` is the newest of `name`.

        Raises StaleEpochError when a newer one has been handed out.
        """
        rows = [(key, _dump(value)) for key, value in records.items()]
        with self._lock, self._transaction():
            newest = _newest_epoch(self._connection, name)
            if epoch < newest:
                raise StaleEpochError(f"run {name}: epoch {epoch} was replaced by {newest}")
            self._connection.executemany(PUT, rows)

    def get(self, key: str) -> Any | None:
        rows = self._execute("SELECT value FROM records WHERE key = ?", (key,))
        return json.loads(rows[0][0]) if rows else None

    def append(self, stream: str, value: Any) -> int:
        """Returns the sequence number, from 1 on without gaps."""
        rows = self._execute(
            "INSERT INTO streams SELECT ?1, COALESCE(MAX(sequence), 0) + 1, ?2"
            " FROM streams WHERE stream = ?1 RETURNING sequence",
            (stream, _dump(value)),
        )
        return rows[0][0]

    def extend(self, stream: str, values: Sequence[Any], after: int) -> None:
        """Append all or none, in one transaction, to a stream whose last sequence is `after`.

        Raises OutOfOrderError when it is another one: somebody else writes to the stream.
        """
        rows = [(stream, after + i, _dump(value)) for i, value in enumerate(values, start=1)]
        with self._lock, self._transaction():
            query = "SELECT COALESCE(MAX(sequence), 0) FROM streams WHERE stream = ?"
            last = self._connection.execute(query, (stream,)).fetchone()[0]
            if last != after:
                raise OutOfOrderError(f"{stream}: ends at {last}, not at {after}")
            self._connection.executemany("INSERT INTO streams VALUES (?, ?, ?)", rows)

    def read(self, stream: str, after: int = 0) -> Iterator[tuple[int, Any]]:
        """(sequence, value) of each entry behind `after`, in order."""
        rows = self._execute(
            "SELECT sequence, value FROM streams WHERE stream = ? AND sequence > ? ORDER BY sequence",
            (stream, after),
        )
        return ((sequence, json.loads(value)) for sequence, value in rows)

    def next_epoch(self, name: str) -> int:
        """A fencing epoch newer than every one handed out before, from 1 on."""
        rows = self._execute(
            "INSERT INTO epochs VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1"
            " RETURNING epoch",
            (name,),
        )
        return rows[0][0]

    def newest_epoch(self, name: str) -> int:
        """The last one that was handed out; 0 before the first."""
        with self._lock:
            return _newest_epoch(self._connection, name)

    def close(self) -> None:
        # SQLite crashes the process when a connection is closed under a statement.
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _execute(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()


def issued_epoch(path: Path, name: str) -> int | None:
    """The newest epoch of `name` in another process's store; None where there is no store yet."""
    if not path.exists():
        return None
    with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as connection:
        return _newest_epoch(connection, name)


def _newest_epoch(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT epoch FROM epochs WHERE name = ?", (name,)).fetchone()
    return row[0] if row else 0


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
