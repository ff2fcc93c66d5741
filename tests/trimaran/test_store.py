import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.errors import StaleEpochError, UnavailableError
from trimaran.store import SqliteStore, issued_epoch


def test_records_streams_and_epochs_survive_a_restart(tmp_path):
    store = SqliteStore(tmp_path / "store.sqlite")
    store.put("version/live", {"step": 3})
    store.put("version/live", {"step": 4})
    assert [store.append("ledger", {"n": n}) for n in (1, 2)] == [1, 2]
    assert store.append("other", {}) == 1
    assert store.next_epoch("run") == 1
    store.close()

    store = SqliteStore(tmp_path / "store.sqlite")
    assert store.get("version/live") == {"step": 4}
    assert store.get("nothing") is None
    assert list(store.read("ledger")) == [(1, {"n": 1}), (2, {"n": 2})]
    assert list(store.read("ledger", after=1)) == [(2, {"n": 2})]
    assert (store.next_epoch("run"), store.next_epoch("another")) == (2, 1)
    store.close()


def test_two_processes_worth_of_connections_never_share_a_sequence_or_epoch(tmp_path):
    stores = [SqliteStore(tmp_path / "store.sqlite") for _ in range(2)]
    sequences, epochs = [], []

    def write(store):
        for _ in range(10):
            sequences.append(store.append("ledger", {}))
            epochs.append(store.next_epoch("run"))

    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(sequences) == list(range(1, 21))
    assert sorted(epochs) == list(range(1, 21))


def test_closing_waits_for_a_statement_under_way(tmp_path):
    """SQLite would crash the whole process otherwise."""
    store, used = SqliteStore(tmp_path / "store.sqlite"), threading.Event()

    def write():
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            while True:
                store.put("key", "value" * 10_000)
                used.set()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert used.wait(timeout=60)
    store.close()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_json_value_comes_back(tmp_path_factory, value):
    store = SqliteStore(tmp_path_factory.mktemp("store") / "store.sqlite")
    store.put("key", {"value": value})
    assert store.get("key") == {"value": value}
    store.close()


def test_records_are_written_under_the_newest_epoch_only(tmp_path):
    path = tmp_path / "store.sqlite"
    ours, other = SqliteStore(path), SqliteStore(path)
    assert ours.newest_epoch("run") == 0
    ours.put_fenced({"a": 0}, "run", 0)
    assert ours.next_epoch("run") == 1
    ours.put_fenced({"a": 1, "b": 1}, "run", 1)
    assert other.next_epoch("run") == 2  # another process
    with pytest.raises(StaleEpochError, match="run run: epoch 1 was replaced by 2"):
        ours.put_fenced({"a": 2, "b": 2}, "run", 1)
    assert (ours.get("a"), ours.get("b")) == (1, 1)
    ours.put_fenced({"b": 3}, "run", 2)
    assert other.get("b") == 3
    for store in (ours, other):
        store.close()


def test_a_store_that_another_process_opens_too_is_waited_for(tmp_path):
    """SQLite says "database is locked" at once when both turn the write-ahead log on."""
    path = tmp_path / "store.sqlite"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    letting_go = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    letting_go.start()
    store = SqliteStore(path)
    store.put("key", 1)
    store.close()
    letting_go.join()
    other.close()


def test_no_epoch_is_drawn_between_the_comparison_and_the_write(tmp_path):
    """Or two controllers would both believe that theirs was the newest when they published."""
    path = tmp_path / "store.sqlite"
    SqliteStore(path).close()
    failures = []

    def conduct():
        store = SqliteStore(path)
        for _ in range(20):
            epoch = store.next_epoch("run")
            with suppress(StaleEpochError):
                store.put_fenced({"live": epoch}, "run", epoch)
                if (store.get("live") or 0) < epoch:
                    failures.append(epoch)
        store.close()

    threads = [threading.Thread(target=conduct) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures


@pytest.mark.parametrize("folder", ["plain", "c#", "a?b=c", "100%41"])
def test_the_newest_epoch_is_read_without_opening_the_store(tmp_path, folder):
    path = tmp_path / folder / "store.sqlite"
    path.parent.mkdir()
    assert issued_epoch(path.parent, "run") is None and not path.exists()
    store = SqliteStore(path)
    assert issued_epoch(path.parent, "run") == 0
    store.next_epoch("run")
    store.next_epoch("run")
    assert issued_epoch(path.parent, "run") == 2
    assert issued_epoch(path.parent, "another") == 0
    store.close()
    assert [entry.name for entry in tmp_path.iterdir()] == [folder]


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

    def __getattr__(self, name):
        return getattr(self._connection, name)


def hang(store: Any, word: str) -> HangingConnection:
    store._connection = HangingConnection(store._connection, word)
    return store._connection


CALLS = {
    "put": lambda store: store.put("key", 1),
    "get": lambda store: store.get("key"),
    "append": lambda store: store.append("stream", 1),
    "extend": lambda store: store.extend("stream", [1], after=0),
    "read": lambda store: store.read("stream"),
    "next_epoch": lambda store: store.next_epoch("run"),
    "newest_epoch": lambda store: store.newest_epoch("run"),
    "put_fenced": lambda store: store.put_fenced({"key": 1}, "run", 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_disk_that_hangs_is_an_error_that_names_the_file(tmp_path, call):
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path, close_timeout=0.05)
    store.disk_timeout = 0.05  # it had longer to open
    disk = hang(store, "")
    with pytest.raises(UnavailableError, match=f"{path}: its disk has not answered"):
        CALLS[call](store)
    store.close()  # nor does it hold the end
    disk.let_go.set()


def test_what_came_behind_a_write_that_hangs_never_reaches_the_disk(tmp_path):
    store = SqliteStore(tmp_path / "store.sqlite")
    store.disk_timeout = 0.1
    disk = hang(store, "INSERT")
    for key in ("under way", "refused at once"):
        with pytest.raises(UnavailableError):
            store.put(key, 1)
    assert len(disk.statements) == 1
    disk.let_go.set()
    store.disk_timeout = 60
    while store._thread.hangs:
        time.sleep(0.01)
    store.put("back", 2)
    assert [store.get(key) for key in ("under way", "refused at once", "back")] == [1, None, 2]
    store.close()


def test_a_disk_that_hangs_does_not_hold_the_process(tmp_path):
    """A thread inside the kernel cannot be ended; the interpreter must not wait for it."""
    code = f"""
import threading
from pathlib import Path
from trimaran.errors import UnavailableError
from trimaran.store import SqliteStore
found = SqliteStore(Path({str(tmp_path / "store.sqlite")!r}), close_timeout=0.1)
found.disk_timeout = 0.1
try:
    found._call(threading.Event().wait)
except UnavailableError as error:
    print(error)
found.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "store.sqlite: its disk has not answered" in done.stdout
