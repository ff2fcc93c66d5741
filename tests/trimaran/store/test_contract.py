"""The contract of a store, on ours and on one from outside."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trimaran.store.clients import STORES, Connect, opened
from trimaran.errors import OutOfOrderError, StaleEpochError
from trimaran.store import ConflictError, Lease, Store, TrimmedError, entries, kept_entries


@pytest.fixture(params=STORES)
def connect(request: pytest.FixtureRequest) -> Connect:
    return STORES[request.param](request)


async def value_of(store: Store, key: str) -> Any:
    record = await store.get(key)
    return record and record.value


async def acquire(store: Store, name: str, holder: str) -> Lease:
    lease = await store.acquire(name, holder, 60)
    assert lease
    return lease


async def test_records_are_replaced_and_are_copies(connect: Connect) -> None:
    async with opened(connect) as store:
        value = {"step": [1, None, "é"]}
        await store.put("a", value)
        value["step"].append(2)
        assert await value_of(store, "a") == {"step": [1, None, "é"]}
        await store.put("a", 5)
        assert (await value_of(store, "a"), await store.get("nothing")) == (5, None)
        await store.put("null", None)
        assert (await store.get("null")) is not None


async def test_who_writes_a_record_may_say_what_it_replaces(connect: Connect) -> None:
    async with opened(connect, 2) as (store, other):
        first = await store.put("a", 1, expected=0)
        with pytest.raises(ConflictError, match=f"a: has version {first}, not 0; read it again"):
            await other.put("a", 2, expected=0)
        second = await other.put("a", 2, expected=first)
        with pytest.raises(ConflictError):
            await store.delete("a", first)
        assert await value_of(store, "a") == 2
        for expected in (second, 0, None):
            await store.delete("a", expected)
        assert await store.get("a") is None
        with pytest.raises(ConflictError, match="a: has version 0"):
            await other.put("a", 4, expected=second)
        assert await store.put("a", 5, expected=0) > second > first


async def test_a_call_that_is_cancelled_ends_so_at_whatever_moment_it_is(connect: Connect) -> None:
    """A loop that asks a store again and again would else never end."""
    async with opened(connect) as store:
        for call in (lambda: store.get("a"), lambda: store.put("a", 1)):
            for num_turns in range(60):
                await call()  # its connection stands
                task = asyncio.create_task(call())
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                was_under_way = task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() is was_under_way, f"cancelled after {num_turns} turns"


async def test_records_are_listed_by_prefix_a_page_at_a_time(connect: Connect) -> None:
    async with opened(connect) as store:
        for key in ("b/2", "a", "b/é", "b", "b/10", "b/1", "c/1", "b0"):
            await store.put(key, key.upper())
        rows = await store.list_records("b/")
        assert [key for key, _ in rows] == ["b/1", "b/10", "b/2", "b/é"]
        assert [record.value for _, record in rows] == ["B/1", "B/10", "B/2", "B/É"]
        assert rows[0][1] == await store.get("b/1")
        assert [k for k, _ in await store.list_records("b/", limit=2)] == ["b/1", "b/10"]
        assert [k for k, _ in await store.list_records("b/", "b/10", 1)] == ["b/2"]
        assert await store.list_records("b/", "b/é") == ()
        assert [k for k, _ in await store.list_records("b/", "a")] == [k for k, _ in rows]
        assert len(await store.list_records()) == 8
        await store.delete("b/2")
        assert len(await store.list_records("b/")) == 3


async def test_streams_grow_without_gaps(connect: Connect) -> None:
    async with opened(connect, 2) as (store, other):
        assert [await store.extend("ledger", [{"n": n}]) for n in (1, 2)] == [1, 2]
        assert await other.extend("ledger", [{"n": 3}, {"n": 4}], after=2) == 4
        for after in (3, 5):
            with pytest.raises(OutOfOrderError, match=f"ledger: ends at 4, not at {after}"):
                await store.extend("ledger", [{}, {}], after)
        assert await store.read("ledger", after=1, limit=2) == ((2, {"n": 2}), (3, {"n": 3}))
        assert await store.read("ledger", after=4) == await store.read("nothing") == ()
        pages = [entry async for entry in entries(store, "ledger", page=3)]
        assert pages == [(n, {"n": n}) for n in (1, 2, 3, 4)]


async def test_a_stream_goes_on_behind_what_was_dropped(connect: Connect) -> None:
    async with opened(connect) as store:
        await store.extend("s", list("abcde"))
        await store.trim("s", 3)
        assert await store.read("s") == await store.read("s", after=3) == ((4, "d"), (5, "e"))
        with pytest.raises(TrimmedError, match="s: entries 3 to 3 are no longer kept") as reported:
            await store.read("s", after=2)
        assert reported.value.through == 3
        await store.trim("s", 100)
        assert (await store.read("s"), await store.last("s")) == ((), 5)
        assert await store.extend("s", ["f"]) == 6


async def test_what_is_kept_is_read_to_its_end_also_where_it_is_trimmed_meanwhile(
    connect: Connect,
) -> None:
    async with opened(connect) as store:
        await store.extend("s", list("abcdefg"))
        await store.trim("s", 1)
        found: list[str] = []
        async for number, value in kept_entries(store, "s", page=2):
            found.append(value)
            if number == 3:
                await store.trim("s", 5)
        assert found == ["b", "c", "f", "g"]
        assert [value async for _, value in kept_entries(store, "never")] == []


async def test_records_are_written_under_the_newest_epoch_only(connect: Connect) -> None:
    async with opened(connect, 2) as (store, other):
        await store.put_fenced({"a": 0}, "run", 0)
        assert [await client.next_epoch("run") for client in (store, other)] == [1, 2]
        await store.put_fenced({"a": 2, "b": 2}, "run", 2)
        with pytest.raises(StaleEpochError, match="run run: epoch 1 was replaced by 2"):
            await store.put_fenced({"a": 1, "c": 1}, "run", 1)
        assert [await value_of(store, key) for key in "abc"] == [2, 2, None]


async def test_a_lease_is_one_holders_until_it_ends(connect: Connect) -> None:
    async with opened(connect, 2) as (store, other):
        lease = await acquire(store, "manager", "one")
        assert lease == Lease("manager", "one", 1) == await other.holder("manager")
        assert await other.acquire("manager", "two", 60) is None
        await store.renew(lease, 0.05)
        while await other.holder("manager"):
            await asyncio.sleep(0.01)
        await store.renew(lease, 0.0)  # nothing came between
        second = await acquire(other, "manager", "two")
        assert second == Lease("manager", "two", 2)
        with pytest.raises(ConflictError, match="lease manager: one does not hold it any more"):
            await store.renew(lease, 60)
        await store.release(lease)
        assert await store.holder("manager") == second
        again = await acquire(other, "manager", "two")
        with pytest.raises(ConflictError):
            await other.renew(second, 60)
        await other.put_fenced({"a": 1}, "manager", again.epoch)
        with pytest.raises(StaleEpochError):
            await other.put_fenced({"a": 1}, "manager", second.epoch)
        await other.release(again)
        assert await store.acquire("manager", "one", 60) == Lease("manager", "one", 4)


async def test_what_is_deleted_leaves_the_rest_alone(connect: Connect) -> None:
    async with opened(connect) as store:
        for name in ("run/1", "run/2", "é"):
            await store.put(name, 1)
            await store.extend(name, [1, 2])
            await store.trim(name, 1)
            assert await store.acquire(name, "one", 60)
        await store.delete_all("run/1")
        assert [key for key, _ in await store.list_records()] == ["run/2", "é"]
        assert await store.holder("run/1") is None
        assert await store.extend("run/1", ["new"]) == 1
        assert await store.read("run/2") == ((2, 2),)
        await store.delete_all()
        assert await store.list_records() == ()
        assert await store.last("é") == await store.newest_epoch("é") == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), value=JSON)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_any_json_value_comes_back(connect: Connect, key: str, value: Any) -> None:
    async def body() -> None:
        async with opened(connect) as store:
            await store.put(f"key/{key}", {"value": value})
            last = await store.extend(f"stream/{key}", [value])
            assert await value_of(store, f"key/{key}") == {"value": value}
            assert await store.read(f"stream/{key}", last - 1) == ((last, value),)

    asyncio.run(body())
