"""Ranks find rank 0 through the run's store, each run its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from services.trainer import ranks
from services.trainer.meeting import Meeting
from tests.extending.memory_store import MemoryStore
from trimaran.errors import LeftBehindError
from trimaran.run.network import LOOPBACK
from trimaran.store import LostWritesError, Record


def host() -> TCPStore:
    return TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30), wait_for_workers=False
    )


async def test_what_was_announced_last_is_found_by_the_ranks_of_this_run_only() -> None:
    store = MemoryStore()
    ours, other = Meeting(store, "run"), Meeting(store, "other")
    assert await asyncio.to_thread(ours.find) is None
    for port in (1, 2):
        await asyncio.to_thread(ours.announce, {"port": port})
    assert await asyncio.to_thread(Meeting(store, "run").find) == {"port": 2}
    assert await asyncio.to_thread(other.find) is None


async def test_what_earlier_ranks_announced_misleads_no_rank() -> None:
    """Their port may be another program's by now, or a store of another run's ranks."""

    meeting, stranger = Meeting(MemoryStore(), "run"), host()
    stranger.set(ranks.NONCE_KEY, "another")
    for place in (
        {"host": "127.0.0.1", "port": stranger.port, "nonce": "ours"},
        {"host": "127.0.0.1", "port": 1, "nonce": "ours"},
        {"port": stranger.port, "nonce": "ours"},
        {},
    ):
        await asyncio.to_thread(meeting.announce, place)
        assert await asyncio.to_thread(ranks._try, meeting, 1, "life") is None
    ours = await asyncio.to_thread(ranks._host, meeting, LOOPBACK, 30.0)
    found = await asyncio.to_thread(ranks._try, meeting, 1, "life")
    assert found and found.port == ours.port


LOOK = 0.01


async def stays(watch: asyncio.Task[None]) -> None:
    await asyncio.sleep(20 * LOOK)
    assert not watch.done()


async def test_a_rank_is_left_behind_once_another_rank_0_announces_itself() -> None:
    """Also while it still waits for others there: whom it met is what counts."""

    store = MemoryStore()
    mine, other = Meeting(store, "run"), Meeting(store, "run")
    watch = asyncio.create_task(mine.until_broken(1, LOOK))
    for port in (1, 2):  # of earlier ranks: it has met no rank yet
        await asyncio.to_thread(other.announce, {"port": port, "nonce": f"{port}"})
        await stays(watch)
    mine.meets({"port": 2, "nonce": "2"})
    await stays(watch)
    await asyncio.to_thread(other.announce, {"port": 2, "nonce": "3"})
    with pytest.raises(LeftBehindError, match="trainer rank 1: the rank 0 that it had met was"):
        await asyncio.wait_for(watch, 60)


async def test_a_rank_that_comes_after_another_has_rank_0_start_again_and_waits_for_it() -> None:
    """Nothing else may have seen the death of the one before."""

    store = MemoryStore()
    of_rank_0, of_rank_1, after = (Meeting(store, "run") for _ in range(3))
    hosted = await asyncio.to_thread(ranks._host, of_rank_0, LOOPBACK, 30.0)
    watch = asyncio.create_task(of_rank_0.until_broken(0, LOOK))
    for _ in range(2):  # the same life takes its own seat again
        assert await asyncio.to_thread(ranks._try, of_rank_1, 1, "first")
    await stays(watch)
    assert await asyncio.to_thread(ranks._try, after, 1, "second") is None
    with pytest.raises(LeftBehindError, match="trainer rank 0: a rank that it had met was"):
        await asyncio.wait_for(watch, 60)
    del hosted
    again = await asyncio.to_thread(ranks._host, Meeting(store, "run"), LOOPBACK, 30.0)
    found = await asyncio.to_thread(ranks._try, after, 1, "second")
    assert found and found.port == again.port


async def test_a_rank_ends_where_the_store_has_lost_what_was_announced() -> None:
    """As Redis does that fails over to a replica: no rank goes on beside ranks that see other things."""

    class GoneBack(MemoryStore):
        async def get(self, key: str) -> Record | None:
            raise LostWritesError("the store has gone back")

    with pytest.raises(LostWritesError):
        await asyncio.wait_for(Meeting(GoneBack(), "run").until_broken(1, LOOK), 60)
