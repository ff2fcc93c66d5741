"""What outlives a process: records, append-only streams and fencing epochs.

`Store` says what a run needs of it, `open_store` chooses one. Ours is one SQLite file in the run
folder, safe for several processes on one machine.

A disk that hangs (a network file system without its server) holds whoever writes to
it or reads from it in the kernel, for ever. So every call is made on the store's own
thread, and raises UnavailableError after the store's `timeout`.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trimaran.call_thread import CallThread
from trimaran.errors import DeadlineError, OutOfOrderError, StaleEpochError, UnavailableError

STORE_NAME = "store.sqlite"

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
"""For another process to end its own transaction."""
DISK_SECONDS = 60.0
"""For one call, with those that stand before it."""
CLOSE_SECONDS = 10.0

Result = TypeVar("Result")


class Store(Protocol):
    """Records by key, streams that only grow, and counters that fence off older processes.

    Values are what JSON can hold. Several processes and threads may use one store: each call is
    whole or nothing, and when it returns, its data is durable. Any call may raise UnavailableError.

    Example:
        store = open_store(Path("runs/demo-20261120-120000"))
        store.put("run/demo", {"state": "succeeded"})
        epoch = store.next_epoch("demo")
    """

    def put(self, key: str, value: Any) -> None:
        """Replaces what stood under the key."""
        ...

    def put_fenced(self, records: Mapping[str, Any], name: str, epoch: int) -> None:
        """All records or none, while `epoch` is the newest of `name`.

        Raises StaleEpochError when a newer one has been handed out.
        """
        ...

    def get(self, key: str) -> Any | None:
        """None where nothing stands under the key."""
        ...

    def append(self, stream: str, value: Any) -> int:
        """Returns the sequence number, from 1 on without gaps."""
        ...

    def extend(self, stream: str, values: Sequence[Any], after: int) -> None:
        """Append all or none to a stream whose last sequence is `after`.

        Raises OutOfOrderError when it is another one: somebody else writes to the stream.
        """
        ...

    def read(self, stream: str, after: int = 0) -> Iterator[tuple[int, Any]]:
        """(sequence, value) of each entry behind `after`, in order."""
        ...

    def next_epoch(self, name: str) -> int:
        """A fencing epoch newer than every one handed out before, from 1 on."""
        ...

    def newest_epoch(self, name: str) -> int:
        """The last one that was handed out; 0 before the first."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


def open_store(run_folder: Path) -> Store:
    """The store of a run, made where there is none yet."""
    return SqliteStore(run_folder / STORE_NAME)


def find_store(run_folder: Path) -> Store | None:
    """The store of a run; None where nothing was recorded yet."""
    return open_store(run_folder) if (run_folder / STORE_NAME).is_file() else None


class SqliteStore:
    """A `Store` in one file, with `synchronous=FULL`.

    When the disk does not answer, UnavailableError names the file. A write that was under way then
    may still reach the disk, should it come back; no later one does.
    """

    def __init__(self, path: Path, close_timeout: float = CLOSE_SECONDS) -> None:
        self._path = path
        self.close_timeout = close_timeout
        self.disk_timeout = DISK_SECONDS
        """Of a call, in seconds. No argument: to open the store may take this long, too."""
        self._thread = CallThread(f"store {path.name}")
        self._is_closed = False
        self._call(self._open)

    def _open(self) -> None:
        self._path.touch(mode=0o600)  # it holds the relay keys of the replicas
        self._connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None
        )
        self._use_write_ahead_log()
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(SCHEMA)

    def _use_write_ahead_log(self) -> None:
        """Waits for another process that opens the file: for this statement SQLite does not."""
        deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def put(self, key: str, value: Any) -> None:
        self._execute(PUT, (key, _dump(value)))

    def put_fenced(self, records: Mapping[str, Any], name: str, epoch: int) -> None:
        rows = [(key, _dump(value)) for key, value in records.items()]

        def write() -> None:
            with self._transaction():
                newest = _newest_epoch(self._connection, name)
                if epoch < newest:
                    raise StaleEpochError(f"run {name}: epoch {epoch} was replaced by {newest}")
                self._connection.executemany(PUT, rows)

        self._call(write)

    def get(self, key: str) -> Any | None:
        rows = self._execute("SELECT value FROM records WHERE key = ?", (key,))
        return json.loads(rows[0][0]) if rows else None

    def append(self, stream: str, value: Any) -> int:
        rows = self._execute(
            "INSERT INTO streams SELECT ?, COALESCE(MAX(sequence), 0) + 1, ?"
            " FROM streams WHERE stream = ? RETURNING sequence",
            (stream, _dump(value), stream),
        )
        return rows[0][0]

    def extend(self, stream: str, values: Sequence[Any], after: int) -> None:
        rows = [(stream, after + i, _dump(value)) for i, value in enumerate(values, start=1)]

        def write() -> None:
            with self._transaction():
                query = "SELECT COALESCE(MAX(sequence), 0) FROM streams WHERE stream = ?"
                last = self._connection.execute(query, (stream,)).fetchone()[0]
                if last != after:
                    raise OutOfOrderError(f"{stream}: ends at {last}, not at {after}")
                self._connection.executemany("INSERT INTO streams VALUES (?, ?, ?)", rows)

        self._call(write)

    def read(self, stream: str, after: int = 0) -> Iterator[tuple[int, Any]]:
        rows = self._execute(
            "SELECT sequence, value FROM streams WHERE stream = ? AND sequence > ? ORDER BY sequence",
            (stream, after),
        )
        return ((sequence, json.loads(value)) for sequence, value in rows)

    def next_epoch(self, name: str) -> int:
        rows = self._execute(
            "INSERT INTO epochs VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1"
            " RETURNING epoch",
            (name,),
        )
        return rows[0][0]

    def newest_epoch(self, name: str) -> int:
        return self._call(lambda: _newest_epoch(self._connection, name))

    def close(self) -> None:
        """Waits for the calls under way: SQLite would crash the process. A disk that hangs for
        `close_timeout` seconds keeps the connection; nothing uses it any more."""
        if not self._is_closed:
            self._is_closed = True
            self._thread.stop(self._connection.close, self.close_timeout)

    def _call(self, function: Callable[[], Result]) -> Result:
        """On the store's thread, one call after the other: only there is the connection used."""
        if self._thread.hangs:
            raise self._no_answer()
        try:
            return self._thread.call(function, self.disk_timeout)
        except DeadlineError:
            if self._is_closed:
                raise sqlite3.ProgrammingError(f"{self._path}: the store is closed") from None
            raise self._no_answer() from None

    def _no_answer(self) -> UnavailableError:
        return UnavailableError(
            f"{self._path}: its disk has not answered for {self.disk_timeout:g} s;"
            " see that it works again"
        )

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _execute(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        return self._call(lambda: self._connection.execute(statement, values).fetchall())


def issued_epoch(run_folder: Path, name: str) -> int | None:
    """The newest epoch of `name` in a run's store, read without opening the store for writing;
    None where there is no store yet."""
    path = run_folder / STORE_NAME
    if not path.exists():
        return None
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
        return _newest_epoch(connection, name)


def _newest_epoch(connection: sqlite3.Connection, name: str) -> int:
    row = connection.execute("SELECT epoch FROM epochs WHERE name = ?", (name,)).fetchone()
    return row[0] if row else 0


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
