"""Redis fails over to a replica that lacks what rank 0 announced last. Real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.trainer.meeting import Meeting
from tests.redis_server import DURABLE, RedisServer
from tests.trimaran.store.door import door_to
from tests.trimaran.store.test_redis_losses import cut_off, fail_over, in_step
from trimaran.store import LostWritesError, open_store

LOOK = 0.01
LOST = "the store has gone back: it had acknowledged 2 writes and holds 1 of them"


@pytest.fixture
def replica(tmp_path: Path, redis_server: RedisServer) -> Iterator[RedisServer]:
    of = ("--replicaof", f"127.0.0.1 {redis_server.port}", "--repl-timeout", "600")
    server = RedisServer(tmp_path / "replica", *DURABLE, *of).start()
    yield server
    server.kill()


async def test_an_older_announcement_is_not_taken_for_a_newer_one(
    redis_server: RedisServer, replica: RedisServer
) -> None:
    """The store warns all that have met that it went back, so they start again and meet again: no rank
    goes on beside ranks that cannot see what it sees."""

    async with door_to(redis_server.port) as door:
        stores = [await open_store(door.url("demo")) for _ in range(2)]
        of_rank_0, of_rank_1 = (Meeting(store, "run") for store in stores)
        await asyncio.to_thread(of_rank_0.announce, {"nonce": "older"})
        await in_step(redis_server, replica)
        cut_off(replica)
        await asyncio.to_thread(of_rank_0.announce, {"nonce": "newer"})
        for meeting in (of_rank_0, of_rank_1):
            found = await asyncio.to_thread(meeting.find)
            assert found and found["nonce"] == "newer"
            meeting.meets(found)
        fail_over(door, redis_server, replica)
        for rank, meeting in enumerate((of_rank_0, of_rank_1)):
            with pytest.raises(LostWritesError, match=LOST):
                await asyncio.wait_for(meeting.until_broken(rank, LOOK), 30)
        # Their next lives know only what the server has.
        lives = [await open_store(door.url("demo")) for _ in range(2)]
        again, other = (Meeting(store, "run") for store in lives)
        await asyncio.to_thread(again.announce, {"nonce": "newest"})
        assert await asyncio.to_thread(other.find) == {"nonce": "newest"}
        for store in (*stores, *lives):
            await store.close()
