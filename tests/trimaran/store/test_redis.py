"""What is particular to a Redis server: settings, lost connections and answers, who is who."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.certificates import Authority
from tests.redis_server import DURABLE, RedisServer
from tests.trimaran.store.door import door_to
from tests.trimaran.store.test_contract import acquire, value_of
from trimaran.errors import InputError, UnavailableError
from trimaran.store import (
    Store,
    StoreError,
    StoreFullError,
    open_store,
    run_store_url,
)
from trimaran.store.redis import RedisStore

WRITES: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "put": lambda store: store.put("a", 2, expected=1),
    "delete": lambda store: store.delete("a", expected=1),
    "put_fenced": lambda store: store.put_fenced({"a": 2}, "run", 1),
    "extend": lambda store: store.extend("s", ["b"], after=1),
    "append": lambda store: store.extend("s", ["b"]),
    "trim": lambda store: store.trim("s", 1),
    "acquire": lambda store: store.acquire("lease", "one", 60),
    "next_epoch": lambda store: store.next_epoch("run"),
    "delete_all": lambda store: store.delete_all("s"),
}


async def contents(store: Store) -> Any:
    return (
        await store.list_records(),
        (await store.read("s"), await store.last("s")),
        (await store.holder("lease"), await store.newest_epoch("run")),
    )


@pytest.mark.parametrize("write", WRITES)
async def test_a_write_whose_answer_is_lost_is_done_once(
    shared_redis: RedisServer, write: str
) -> None:
    """It is tried again, and answered as if nothing had happened."""

    async def life(prefix: str, lose: bool) -> Any:
        async with door_to(shared_redis.port) as door:
            store = await open_store(door.url(prefix))
            assert await store.put("a", 1) == 1
            await store.extend("s", ["a"])
            await store.next_epoch("run")
            door.mute = lose
            call = asyncio.ensure_future(WRITES[write](store))
            while lose and not door.num_swallowed:
                await asyncio.sleep(0.01)
            door.mute = False
            answer = await call
            assert door.num_swallowed == lose
            found = await contents(store)
            await store.close()
            return answer, found

    async with asyncio.timeout(60):
        assert await life(f"lost-{write}", True) == await life(f"kept-{write}", False)


async def test_a_server_that_is_killed_and_restarted_under_writes_costs_time_only(
    redis_server: RedisServer,
) -> None:
    """Another client, which was there before, sees all of them too."""
    store, other = [await open_store(redis_server.url("demo")) for _ in range(2)]

    async def write() -> None:
        for number in range(1, 601):
            assert await store.extend("s", [number], after=number - 1) == number

    writing = asyncio.create_task(write())
    for _ in range(3):
        await asyncio.sleep(0.1)
        await asyncio.to_thread(redis_server.kill)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(redis_server.start)
    await writing
    for each in (store, other):
        assert [value for _, value in await each.read("s")] == list(range(1, 601))
        await each.close()


async def test_a_server_that_stays_away_is_unavailable_and_may_come_back(
    redis_server: RedisServer,
) -> None:
    store = RedisStore(redis_server.url("demo"), timeout=1.0)
    await store.put("a", 1)
    redis_server.kill()
    why = f"redis://127.0.0.1:{redis_server.port}/0 .*: has not answered for 1 s .*see that Redis"
    for call in (store.get("a"), store.put("a", 2)):
        with pytest.raises(UnavailableError, match=why):
            await call
    await asyncio.to_thread(redis_server.start)
    assert await value_of(store, "a") == 1
    await store.put("a", 3)
    await store.close()
    with pytest.raises(StoreError, match="the store is closed"):
        await store.get("a")


async def test_a_frozen_server_is_unavailable_and_does_late_what_nothing_undid(
    redis_server: RedisServer,
) -> None:
    store = RedisStore(redis_server.url("demo"), timeout=3.0)
    await store.extend("s", [1])
    redis_server.freeze()
    with pytest.raises(UnavailableError, match="has not answered for 3 s"):
        await store.extend("s", [2])
    redis_server.thaw()
    values = [value for _, value in await store.read("s")]
    assert values in ([1], [1, 2])
    await store.extend("s", [3])
    assert [value for _, value in await store.read("s")] == [*values, 3]
    await store.close()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("--appendonly", "no"), "appendonly is no, not yes"),
        (("--appendonly", "yes"), "appendfsync is everysec, not always"),
        (
            (*DURABLE, "--maxmemory-policy", "allkeys-lru"),
            "maxmemory-policy is allkeys-lru, not noeviction",
        ),
    ],
)
async def test_settings_that_lose_data_are_refused_or_named(
    tmp_path: Path, redis_program: str, settings: tuple[str, ...], named: str
) -> None:
    server = RedisServer(tmp_path / "redis", *settings).start()
    try:
        with pytest.raises(InputError, match=f"{named}.*accept with durability=weak"):
            await open_store(server.url("demo"))
        store = await open_store(server.url("demo", "&durability=weak"))
        assert store.durability.startswith("weak: ") and named in store.durability
        await store.put("a", 1)
        await store.close()
    finally:
        server.kill()


async def test_a_server_that_waits_for_its_replicas_is_waited_for(
    redis_server: RedisServer,
) -> None:
    """`min-replicas-to-write` keeps a fail-over from losing writes; a replica may restart meanwhile."""

    def want(replicas: int) -> None:
        with redis.Redis(port=redis_server.port) as client:
            client.config_set("min-replicas-to-write", replicas)

    store = RedisStore(redis_server.url("demo"), timeout=20.0)
    hasty = RedisStore(redis_server.url("demo"), timeout=2.0)
    await store.put("a", 1)
    want(1)
    with pytest.raises(UnavailableError) as reported:
        await hasty.put("a", 2)
    assert str(reported.value).endswith(
        ": has not answered for 2 s (it waits for replicas: min-replicas-to-write);"
        " see `INFO replication` there"
    )
    waiting = asyncio.create_task(store.put("a", 3))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    want(0)
    await waiting
    assert await value_of(store, "a") == 3
    await store.close()
    await hasty.close()


async def test_a_url_says_who_asks(tmp_path: Path, redis_server: RedisServer) -> None:
    with redis.Redis(port=redis_server.port) as client:
        client.acl_setuser(
            "ours", enabled=True, passwords=["+s3cret"], keys=["*"], commands=["+@all"]
        )
        client.acl_setuser("default", enabled=False)
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    place = f"127.0.0.1:{redis_server.port}/0"
    for right in (f"ours:s3cret@{place}", f"ours@{place}?password_file={password}"):
        store = await open_store(f"redis://{right}")
        await store.put("a", 1)
        await store.close()
    for wrong in ("ours:wr0ng@", ""):
        with pytest.raises(InputError, match="refuses us .*see user and password") as refused:
            await open_store(f"redis://{wrong}{place}")
        assert "wr0ng" not in str(refused.value)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("", "names no host"),
        ("host:port", "both of them numbers"),
        ("host/db", "both of them numbers"),
        ("host?a=s3cret", "no option a; there are prefix, durability"),
        ("host?durability=some", "durability some; give full or weak"),
        ("host?prefix=", "prefix '': give|prefix ''; give one without braces"),
        ("host?password_file=/nowhere", "password_file /nowhere cannot be read"),
    ],
)
async def test_a_url_that_is_none_is_refused_without_its_password(place: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as error:
        await open_store(f"redis://:s3cret@{place}")
    assert "s3cret" not in str(error.value)


async def test_a_run_has_a_store_of_its_own_beside_the_managers(shared_redis: RedisServer) -> None:
    manager, another = shared_redis.url("mine"), shared_redis.url("yours")
    urls = [manager, *(run_store_url(manager, run, Path("runs")) for run in ("a", "a/b"))]
    urls.append(run_store_url(another, "a", Path("runs")))
    stores = [await open_store(url) for url in urls]
    for number, store in enumerate(stores):
        await store.put("key", number)
        await store.extend("s", [number])
        assert await store.next_epoch("run") == 1
        await acquire(store, "lease", "one")
    await stores[1].delete_all()
    assert await stores[1].get("key") is None
    assert [await value_of(stores[n], "key") for n in (0, 2, 3)] == [0, 2, 3]
    assert await stores[2].last("s") == 1
    for store in stores:
        await store.close()
    assert (
        run_store_url("sqlite:manager.sqlite", "a", Path("runs/a")) == "sqlite:runs/a/store.sqlite"
    )


async def test_a_newer_schema_is_refused(redis_server: RedisServer) -> None:
    store = await open_store(redis_server.url("demo"))
    with redis.Redis(port=redis_server.port) as client:
        client.hset("{trimaran:demo}:meta", "schema", 2)
    for client in (store.get("a"), open_store(redis_server.url("demo"))):
        with pytest.raises(StoreError, match="has schema 2, this Trimaran knows 1; update"):
            await client
    await store.close()


async def test_a_server_without_memory_takes_no_writes_and_is_read(
    redis_server: RedisServer,
) -> None:
    store = await open_store(redis_server.url("demo"))
    await store.put("a", 1)
    with redis.Redis(port=redis_server.port) as client:
        client.config_set("maxmemory", "1mb")
        with pytest.raises(StoreFullError, match="takes no more .*; make room"):
            await store.put("b", "x" * 2_000_000)
        assert await value_of(store, "a") == 1
        client.config_set("maxmemory", 0)
    await store.put("b", "x")
    await store.close()


async def test_tls(tmp_path: Path, redis_program: str) -> None:
    files = Authority("ours").write(tmp_path / "tls")
    plain, server = RedisServer(tmp_path / "plain"), RedisServer(tmp_path / "redis")
    port, server.port = server.port, plain.port  # a second port, for plain connections
    server.settings += ("--tls-port", str(port), "--tls-auth-clients", "yes")
    server.settings += ("--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key))
    server.settings += ("--tls-ca-cert-file", str(files.authorities))
    server.start()
    try:
        url = f"rediss://127.0.0.1:{port}/0?ca_file={files.authorities}"
        store = await open_store(f"{url}&cert_file={files.certificate}&key_file={files.key}")
        await store.put("a", 1)
        assert await value_of(store, "a") == 1
        await store.close()
        unknown = RedisStore(url, timeout=0.5)
        with pytest.raises(UnavailableError):
            await unknown.get("a")
        await unknown.close()
    finally:
        server.kill()
