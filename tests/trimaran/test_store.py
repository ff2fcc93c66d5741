import sqlite3
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.store import SqliteStore


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
