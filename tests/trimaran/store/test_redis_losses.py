"""A server that lost what it had acknowledged is found out by what knows more than it does.

Its file is torn at the end, or a replica takes over that lacks the last writes. Real servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from tests.redis_server import RedisServer
from tests.trimaran.store.door import Door, door_to
from tests.trimaran.store.test_contract import value_of
from trimaran.store import LostWritesError, Store, open_store

LOST = r"the store has gone back: it had acknowledged (\d+) writes and holds (\d+) of them"
CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "read": lambda store: store.read("s"),
    "extend": lambda store: store.extend("s", ["new"]),
    "next_epoch": lambda store: store.next_epoch("run"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_file_that_is_torn_at_its_end(redis_server: RedisServer, name: str) -> None:
    """Half of the last write is gone, and so the server drops the whole of it."""
    knows, knew = [await open_store(redis_server.url("demo")) for _ in range(2)]
    await knows.put("a", 1)
    await knew.get("a")
    await knows.extend("s", [1, 2, 3])
    redis_server.kill()
    redis_server.truncate(10)
    await asyncio.to_thread(redis_server.start)
    for _ in range(2):  # and it stays so
        with pytest.raises(LostWritesError, match="acknowledged 2 writes and holds 1 "):
            await CALLS[name](knows)
    # Whatever saw nothing of it goes on from what there is, whole writes only.
    assert (await knew.read("s"), await value_of(knew, "a")) == ((), 1)
    await knew.extend("s", ["other"])
    await knew.extend("s", ["writes"])
    with pytest.raises(LostWritesError, match=LOST):
        await CALLS[name](knows)
    for store in (knows, knew):
        await store.close()


async def test_a_server_that_is_empty_after_its_restart(redis_server: RedisServer) -> None:
    store = await open_store(redis_server.url("demo"))
    await store.put("a", 1)
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    with pytest.raises(LostWritesError, match="acknowledged 1 writes and holds 0"):
        await store.get("a")
    fresh = await open_store(redis_server.url("demo"))
    await fresh.put("a", 1)  # a writer begins again; that does not deceive who knows
    with pytest.raises(LostWritesError):
        await store.get("a")
    for each in (store, fresh):
        await each.close()


@pytest.fixture
def replica(tmp_path: Path, redis_server: RedisServer) -> Iterator[RedisServer]:
    server = RedisServer(
        tmp_path / "replica",
        *("--appendonly", "yes", "--appendfsync", "always"),
        *("--replicaof", f"127.0.0.1 {redis_server.port}", "--repl-timeout", "600"),
    ).start()
    yield server
    server.kill()


async def in_step(master: RedisServer, replica: RedisServer) -> None:
    async with asyncio.timeout(30):
        while True:
            with redis.Redis(port=master.port) as one, redis.Redis(port=replica.port) as other:
                ours, its = one.info("replication"), other.info("replication")
            same = ours["master_repl_offset"] == its["slave_repl_offset"]
            if its["master_link_status"] == "up" and same:
                return
            await asyncio.sleep(0.02)


def cut_off(replica: RedisServer) -> None:
    """Nothing of the master reaches it any more."""
    with redis.Redis(port=replica.port) as client:
        client.replicaof("NO", "ONE")


def fail_over(door: Door, master: RedisServer, replica: RedisServer) -> None:
    """The master dies, and the replica takes over with what it has."""
    master.kill()
    cut_off(replica)
    door.port = replica.port
    door.cut()


@asynccontextmanager
async def pair(
    master: RedisServer, replica: RedisServer
) -> AsyncGenerator[tuple[Door, Store], None]:
    async with door_to(master.port) as door:
        store = await open_store(door.url("demo"))
        await store.extend("s", [1])
        await store.next_epoch("run")
        await in_step(master, replica)
        yield door, store
        await store.close()


async def test_a_replica_that_has_everything_takes_over(
    redis_server: RedisServer, replica: RedisServer
) -> None:
    async with pair(redis_server, replica) as (door, store):
        fail_over(door, redis_server, replica)
        assert await store.extend("s", [2], after=1) == 2
        assert await store.next_epoch("run") > 1


@pytest.mark.parametrize("name", CALLS)
async def test_a_replica_that_lacks_the_last_write_takes_over(
    redis_server: RedisServer, replica: RedisServer, name: str
) -> None:
    async with pair(redis_server, replica) as (door, store):
        cut_off(replica)
        await store.extend("s", [2], after=1)
        fail_over(door, redis_server, replica)
        other = await open_store(door.url("demo"))
        await other.extend("s", ["other"])
        await other.extend("s", ["further"])
        with pytest.raises(LostWritesError, match=LOST):
            await CALLS[name](store)
        await other.close()
