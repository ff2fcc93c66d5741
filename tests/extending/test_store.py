"""The contract of a store, on ours and on one from outside. A store of your own: add it to STORES."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.extending.memory_store import MemoryStore
from tests.extending.recipes import RECIPES, ROOT
from trimaran.errors import OutOfOrderError, StaleEpochError
from trimaran.store import SqliteStore, Store

STORES: dict[str, Callable[[Path], Store]] = {
    "sqlite": lambda folder: SqliteStore(folder / "store.sqlite"),
    "memory": lambda folder: MemoryStore(),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = STORES[request.param](tmp_path)
    yield store
    store.close()
    store.close()


def test_records_are_replaced_and_are_copies(store: Store) -> None:
    value = {"step": [1, None, "é"]}
    store.put("a", value)
    value["step"].append(2)
    assert store.get("a") == {"step": [1, None, "é"]}
    store.put("a", 5)
    assert (store.get("a"), store.get("nothing")) == (5, None)


def test_streams_grow_without_gaps(store: Store) -> None:
    assert [store.append("ledger", {"n": n}) for n in (1, 2)] == [1, 2]
    assert store.append("other", {}) == 1
    store.extend("ledger", [{"n": 3}, {"n": 4}], after=2)
    assert list(store.read("ledger", after=1)) == [(n, {"n": n}) for n in (2, 3, 4)]
    assert list(store.read("nothing")) == []


def test_a_stream_that_somebody_else_has_extended_is_left_alone(store: Store) -> None:
    store.append("ledger", 1)
    for after in (0, 2):
        with pytest.raises(OutOfOrderError, match=f"ledger: ends at 1, not at {after}"):
            store.extend("ledger", [2, 3], after)
    assert list(store.read("ledger")) == [(1, 1)]


def test_records_are_written_under_the_newest_epoch_only(store: Store) -> None:
    assert store.newest_epoch("run") == 0
    assert [store.next_epoch("run"), store.next_epoch("run"), store.next_epoch("other")] == [
        1,
        2,
        1,
    ]
    store.put_fenced({"a": 2, "b": 2}, "run", 2)
    with pytest.raises(StaleEpochError, match="run run: epoch 1 was replaced by 2"):
        store.put_fenced({"a": 1, "c": 1}, "run", 1)
    assert [store.get(key) for key in "abc"] == [2, 2, None]
    assert store.newest_epoch("run") == 2


def test_threads_never_share_a_sequence_or_an_epoch(store: Store) -> None:
    def draw(_: int) -> tuple[int, int]:
        return store.append("ledger", {}), store.next_epoch("run")

    with ThreadPoolExecutor(4) as threads:
        sequences, epochs = zip(*threads.map(draw, range(40)), strict=True)
    assert sorted(sequences) == sorted(epochs) == list(range(1, 41))


def test_the_recipe_shows_what_the_store_does() -> None:
    ((path, shown),) = RECIPES["A store"].parts.items()

    def words(text: str) -> str:
        """Without line breaks, indents and trailing commas, which formatting moves."""
        return "".join(text.split())

    whole = words((ROOT / path).read_text(encoding="utf-8"))
    for method in shown.strip().split("\n\n"):
        assert words(method) in whole
