"""One SQLite file, used on a thread of its own, and made as it is opened.

A disk that hangs (a network file system without its server) holds each process that writes to it or reads
from it in the kernel, for ever. So every call is made on the file's own thread, and raises
UnavailableError after `timeout` seconds.
"""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from trimaran.errors import TrimaranError, UnavailableError
from trimaran.host.call_thread import Disk
from trimaran.host.call_waits import waiting_for
from trimaran.store.port import StoreError, StoreFullError

SCHEMA_VERSION = 1
SCHEMA = """
    CREATE TABLE records (key TEXT PRIMARY KEY, value TEXT NOT NULL, version INTEGER NOT NULL);
    CREATE TABLE clock (version INTEGER NOT NULL);
    INSERT INTO clock VALUES (0);
    CREATE TABLE streams (
        stream TEXT NOT NULL, sequence INTEGER NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (stream, sequence)
    );
    CREATE TABLE trims (stream TEXT PRIMARY KEY, through INTEGER NOT NULL);
    CREATE TABLE epochs (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL);
    CREATE TABLE leases (
        name TEXT PRIMARY KEY, holder TEXT NOT NULL, epoch INTEGER NOT NULL,
        boot TEXT NOT NULL, until REAL NOT NULL
    );
"""

BUSY_TIMEOUT_SECONDS = 30.0
"""For another process to end its own transaction."""
DISK_SECONDS = 60.0
"""For one call, with those that stand before it."""
CLOSE_SECONDS = 10.0
LOG = "-wal"
"""Behind the file's name: its write-ahead log, while a process has it open."""

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
Result = TypeVar("Result")


class SqliteFile:
    """A connection with a write-ahead log and `synchronous=FULL`, opened by the first call.

    When the disk does not answer, UnavailableError names the file. A write that was under way then
    may still reach the disk, should it come back; no later one does.

    Example: await SqliteFile(path).call(lambda connection: connection.execute("SELECT 1"))
    """

    def __init__(self, path: Path, timeout: float, close_timeout: float) -> None:
        """Seconds: of a call, and for the last one as the file is closed."""
        self.path = path
        self.connection: sqlite3.Connection | None = None
        self.disk = Disk(path, timeout)
        self._close_timeout = close_timeout
        self._is_closed = False

    async def call(self, function: Callable[[sqlite3.Connection], Result]) -> Result:
        """On the file's thread, one call after the other: only there is the connection used."""
        try:
            with waiting_for(f"the store {self.path}"):
                return await self.disk.do(lambda: self._make(function))
        except UnavailableError:
            if self._is_closed:
                raise StoreError(f"{self.path}: the store is closed") from None
            raise
        except (sqlite3.Error, OSError) as error:
            raise _translate(self.path, error) from error

    async def write(self, function: Callable[[sqlite3.Connection], Result]) -> Result:
        """All that the function writes, or nothing."""

        def whole(connection: sqlite3.Connection) -> Result:
            with _transaction(connection):
                return function(connection)

        return await self.call(whole)

    async def close(self) -> None:
        """Waits for the calls under way: SQLite would crash the process. A disk that hangs for
        `close_timeout` seconds keeps the connection; nothing uses it any more."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self.disk.close, self._close_timeout, self._disconnect)

    def _disconnect(self) -> None:
        if self.connection:
            self.connection.close()

    def _make(self, function: Callable[[sqlite3.Connection], Result]) -> Result:
        return function(self._open())

    def _open(self) -> sqlite3.Connection:
        if self.connection is None:
            self.path.touch(mode=0o600)  # it holds the relay keys of the replicas
            connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None
            )
            try:
                _use_write_ahead_log(connection)
                connection.execute("PRAGMA synchronous=FULL")
                _make_tables(connection, self.path)
            except BaseException:
                connection.close()
                raise
            self.connection = connection
        return self.connection


class SqliteReader(SqliteFile):
    """The same file for who only reads. Nothing is written into it or beside it, whatever else has it
    open, and nothing is held between two calls: its last writer can still tidy up.

    Example: await SqliteReader(path, 60.0, 10.0).call(lambda connection: ...)
    """

    def _make(self, function: Callable[[sqlite3.Connection], Result]) -> Result:
        log = self.path.with_name(f"{self.path.name}{LOG}")
        while True:
            has_log = log.exists()
            # Without a log no process has it open, and no lock is needed. With one, the index beside it is
            # only read; where its writers were killed, SQLite makes an index in memory.
            how = "readonly_shm=1" if has_log else "immutable=1"
            url = f"file:{quote(str(self.path))}?mode=ro&{how}"
            try:
                with closing(
                    sqlite3.connect(url, timeout=BUSY_TIMEOUT_SECONDS, uri=True)
                ) as connection:
                    if not _version(connection, self.path):
                        raise UnavailableError(f"{self.path}: is being made; try again")
                    result = function(connection)
                if has_log or not log.exists():
                    return result
            except sqlite3.Error:
                if has_log == log.exists():
                    raise
            # It was opened or closed meanwhile: what was read may be of two times.


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Waits for another process that opens the file: for this statement SQLite does not."""
    deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _make_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Where the file has none yet."""
    if _version(connection, path) == SCHEMA_VERSION:
        return
    with _transaction(connection):
        if _version(connection, path) < SCHEMA_VERSION:  # another process may have come first
            for statement in filter(str.strip, SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """0 where there are no tables yet. Raises StoreError for a later Trimaran's."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: has schema {version}, this Trimaran knows {SCHEMA_VERSION}; update Trimaran"
        )
    return version


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite may have rolled back by itself
            connection.execute("ROLLBACK")
        raise


def _translate(path: Path, error: sqlite3.Error | OSError) -> TrimaranError:
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC:
            return StoreFullError(f"{path}: its disk is full; make room")
        return UnavailableError(f"{path}: cannot be opened ({error.strerror})")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFullError(f"{path}: its disk is full; make room")
    if code in DAMAGED:
        return StoreError(f"{path}: damaged ({error}); bring back a copy of it")
    if code == sqlite3.SQLITE_ERROR:
        return StoreError(f"{path}: not a store of ours ({error})")
    return UnavailableError(f"{path}: cannot be used ({error})")
