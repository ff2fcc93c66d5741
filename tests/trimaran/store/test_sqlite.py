"""What is particular to a store in a file: restarts, other versions, a disk that hangs or is full."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.trimaran.store.test_contract import value_of
from trimaran.errors import InputError, UnavailableError
from trimaran.store import Lease, StoreError, StoreFullError, find_store, open_store, read_store
from trimaran.store.sqlite import SqliteStore
from trimaran.store.sqlite_file import SCHEMA_VERSION


async def test_records_streams_leases_and_epochs_survive_a_restart(tmp_path):
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path)
    await store.put("version/live", {"step": 4})
    await store.extend("ledger", [1, 2, 3])
    await store.trim("ledger", 1)
    await store.next_epoch("run")
    await store.acquire("manager", "one", 60)
    await store.close()
    store = await open_store(f"sqlite:{path}")
    assert await value_of(store, "version/live") == {"step": 4}
    assert await store.read("ledger") == ((2, 2), (3, 3))
    assert await store.next_epoch("run") == 2
    lease = await store.holder("manager")
    assert lease and lease.holder == "one"
    assert store.durability == ""
    await store.close()


async def test_a_lease_ends_with_the_boot_of_the_machine(tmp_path, monkeypatch):
    """The clock by which it is held starts again."""
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.acquire("manager", "one", 1e6)
    monkeypatch.setattr("trimaran.store.sqlite._boot", lambda: "another")
    assert await store.holder("manager") is None
    assert await store.acquire("manager", "two", 60) == Lease("manager", "two", 2)
    await store.close()


async def test_a_url_names_a_store(tmp_path):
    for url in ("store.sqlite", "sqlite:", "http://a"):
        with pytest.raises(InputError, match="not a store; give sqlite:PATH or redis://"):
            await open_store(url)
    path = tmp_path / "c# a?b=c 100%41" / "store.sqlite"
    path.parent.mkdir()
    assert await find_store(f"sqlite:{path}") is None
    assert not path.exists()
    store = await open_store(f"sqlite:{path}")
    await store.put("a", 1)
    found = await find_store(f"sqlite:{path}")
    assert found and await value_of(found, "a") == 1
    await found.close()
    await store.close()
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UnavailableError, match="nowhere/store.sqlite: cannot be opened"):
        await open_store(f"sqlite:{tmp_path}/nowhere/store.sqlite")


def write(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


async def test_a_file_is_made_once_whatever_opens_it_first(tmp_path):
    path = tmp_path / "store.sqlite"
    stores = [SqliteStore(path) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    assert [await store.next_epoch("demo") for store in stores] == [1, 2, 3, 4]
    for each in stores:
        await each.close()


async def test_a_newer_file_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "store.sqlite"
    write(path, f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(StoreError, match=f"{path}: has schema 2, this Trimaran knows 1;"):
        await open_store(f"sqlite:{path}")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM sqlite_master").fetchall() == []


async def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match=rf"{path}: damaged \(file is not a database\)"):
        await open_store(f"sqlite:{path}")
    path.unlink()
    write(path, "CREATE TABLE records (other INTEGER)")
    with pytest.raises(StoreError, match=rf"{path}: not a store of ours \(table records already"):
        await open_store(f"sqlite:{path}")


async def test_a_value_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path)
    await store.put("a", 1)
    await store.extend("s", [1])
    write(path, "UPDATE records SET value = '{'; UPDATE streams SET value = '{'")
    with pytest.raises(StoreError, match=f"{path}: a: not JSON"):
        await store.get("a")
    with pytest.raises(StoreError, match=f"{path}: s 1: not JSON"):
        await store.read("s")
    await store.close()


async def test_a_full_disk_is_said_and_ends(tmp_path):
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.put("a", 1)
    await store.file.call(lambda c: c.execute("PRAGMA max_page_count=20"))
    with pytest.raises(StoreFullError, match="store.sqlite: its disk is full; make room"):
        await store.put("b", "x" * 1_000_000)
    assert await store.get("b") is None
    await store.file.call(lambda c: c.execute("PRAGMA max_page_count=100000"))
    await store.put("b", "x" * 1_000_000)
    await store.close()


async def test_closing_waits_for_a_statement_under_way(tmp_path):
    """SQLite would crash the whole process otherwise."""
    store = SqliteStore(tmp_path / "store.sqlite")

    async def write():
        with pytest.raises(StoreError, match="the store is closed"):
            while True:
                await store.put("key", "value" * 10_000)

    await store.put("key", 1)
    writers = [asyncio.create_task(write()) for _ in range(4)]
    await asyncio.sleep(0.05)
    await store.close()
    await asyncio.wait_for(asyncio.gather(*writers), 60)


async def test_a_store_that_another_process_opens_too_is_waited_for(tmp_path):
    """SQLite says "database is locked" at once when both turn the write-ahead log on."""
    path = tmp_path / "store.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    letting_go = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    letting_go.start()
    store = SqliteStore(path)
    await store.put("key", 1)
    await store.close()
    letting_go.join()
    other.close()


class HangingConnection:
    """A disk that holds the statement that begins with `word`, until `let_go`."""

    def __init__(self, connection, word):
        self._connection, self._word = connection, word
        self.let_go, self.statements = threading.Event(), []

    def execute(self, statement, *values):
        self.statements.append(statement)
        if statement.startswith(self._word):
            assert self.let_go.wait(60)
        return self._connection.execute(statement, *values)

    def executemany(self, statement, rows):
        for row in rows:
            self.execute(statement, row)

    def __getattr__(self, name):
        return getattr(self._connection, name)


def hang(store: SqliteStore, word: str) -> HangingConnection:
    """The store must be open."""
    disk = store.file.connection = HangingConnection(store.file.connection, word)  # type: ignore
    return disk


async def test_a_disk_that_hangs_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path, close_timeout=0.05)
    await store.open()
    store.file.disk.timeout = 0.05  # it had longer to open
    disk = hang(store, "")
    for call in (store.put("key", 1), store.get("key")):
        with pytest.raises(UnavailableError, match=f"{path}: its disk has not answered"):
            await call
    await store.close()  # nor does it hold the end
    disk.let_go.set()


async def test_what_came_behind_a_write_that_hangs_never_reaches_the_disk(tmp_path):
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.open()
    store.file.disk.timeout = 0.1
    disk = hang(store, "INSERT")
    for key in ("under way", "refused at once"):
        with pytest.raises(UnavailableError):
            await store.put(key, 1)
    assert sum(statement.startswith("INSERT") for statement in disk.statements) == 1
    disk.let_go.set()
    store.file.disk.timeout = 60
    while store.file.disk.hangs:
        await asyncio.sleep(0.01)
    await store.put("back", 2)
    found = [await store.get(key) for key in ("under way", "refused at once", "back")]
    assert [record and record.value for record in found] == [1, None, 2]
    await store.close()


def test_a_disk_that_hangs_does_not_hold_the_process(tmp_path):
    """A thread inside the kernel cannot be ended; the interpreter must not wait for it."""
    code = f"""
import asyncio, threading
from pathlib import Path
from trimaran.errors import UnavailableError
from trimaran.store.sqlite import SqliteStore
async def main():
    found = SqliteStore(Path({str(tmp_path / "store.sqlite")!r}), 0.2, close_timeout=0.1)
    try:
        await found.file.call(lambda connection: threading.Event().wait())
    except UnavailableError as error:
        print(error)
    await found.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "store.sqlite: its disk has not answered" in done.stdout


WRITER = """
import asyncio, sys
from trimaran.store import open_store
async def write():
    store = await open_store("sqlite:" + sys.argv[1])
    await store.put("run/demo", {"step": 1})
    print("written", flush=True)
    while words := (await asyncio.to_thread(sys.stdin.readline)).split():
        await store.put(*words)
        print("written", flush=True)
    await store.close()
asyncio.run(write())
"""


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_who_only_reads_changes_no_file_whatever_writes_or_was_killed(tmp_path):
    path, step = tmp_path / "a# b?c%.sqlite", {"step": 1}
    assert asyncio.run(read_store(f"sqlite:{path}")) is None

    async def read(key: str = "run/demo"):
        before = contents(tmp_path)
        store = await read_store(f"sqlite:{path}")
        assert store and await store.last("events") == 0
        found = await value_of(store, key)
        with pytest.raises(UnavailableError, match="readonly"):
            await store.put("run/demo", {})
        assert contents(tmp_path) == before, "also while it is open"
        await store.close()
        assert contents(tmp_path) == before
        return found

    def write(process: subprocess.Popen[str], words: str = "") -> None:
        assert process.stdin and process.stdout
        if words:
            print(words, file=process.stdin, flush=True)
        assert process.stdout.readline() == "written\n"

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WRITER, str(path)]
        return subprocess.Popen(command, stdin=-1, stdout=-1, text=True)

    with start() as process:
        write(process)
        assert asyncio.run(read()) == step
        write(process, "key later")
        assert asyncio.run(read("key")) == "later"
        process.kill()
    assert len(contents(tmp_path)) == 3, "what a writer that was killed leaves"
    assert asyncio.run(read("key")) == "later"
    with start() as process:
        write(process)
        process.communicate()
    assert list(contents(tmp_path)) == [path.name]
    assert asyncio.run(read("key")) == "later"


async def test_a_reader_that_stays_sees_a_writer_come_and_go_and_leaves_it_to_tidy_up(tmp_path):
    path = tmp_path / "store.sqlite"
    for number in range(3):
        writer = await open_store(f"sqlite:{path}")
        await writer.put("key", number)
        reader = await read_store(f"sqlite:{path}")
        assert reader and await value_of(reader, "key") == number
        await writer.put("key", -number)
        assert await value_of(reader, "key") == -number
        await writer.close()
        assert [path.name for path in tmp_path.iterdir()] == ["store.sqlite"]
        assert await value_of(reader, "key") == -number
        writer = await open_store(f"sqlite:{path}")
        await writer.put("key", "again")
        assert await value_of(reader, "key") == "again"
        await writer.close()
        await reader.close()
