"""Ranks find rank 0 through the run's store, each run its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from services.trainer import ranks
from services.trainer.meeting import Meeting
from tests.extending.memory_store import MemoryStore
from trimaran.errors import UnavailableError
from trimaran.network import LOOPBACK


def host() -> TCPStore:
    return TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30), wait_for_workers=False
    )


def test_what_was_announced_last_is_found_by_the_ranks_of_this_run_only() -> None:
    async def body() -> None:
        store = MemoryStore()
        ours, other = Meeting(store, "run"), Meeting(store, "other")
        assert await asyncio.to_thread(ours.find) is None
        for port in (1, 2):
            await asyncio.to_thread(ours.announce, {"port": port})
        assert await asyncio.to_thread(Meeting(store, "run").find) == {"port": 2}
        assert await asyncio.to_thread(other.find) is None

    asyncio.run(body())


def test_what_earlier_ranks_announced_misleads_nobody() -> None:
    """Their port may be another program's by now, or a store of another run's ranks."""

    async def body() -> None:
        meeting, stranger = Meeting(MemoryStore(), "run"), host()
        stranger.set(ranks.NONCE_KEY, "another")
        for place in (
            {"host": "127.0.0.1", "port": stranger.port, "nonce": "ours"},
            {"host": "127.0.0.1", "port": 1, "nonce": "ours"},
            {"port": stranger.port, "nonce": "ours"},
            {},
        ):
            await asyncio.to_thread(meeting.announce, place)
            assert await asyncio.to_thread(ranks._try, meeting) is None
        ours = await asyncio.to_thread(ranks._host, meeting, LOOPBACK, 30.0)
        found = await asyncio.to_thread(ranks._try, meeting)
        assert found and found.port == ours.port

    asyncio.run(body())


def test_a_store_that_is_away_for_a_moment_is_asked_again() -> None:
    class Away(MemoryStore):
        async def get(self, key: str) -> Any:
            raise UnavailableError("the store is away")

    async def body() -> None:
        assert await asyncio.to_thread(ranks._try, Meeting(Away(), "run")) is None

    asyncio.run(body())
