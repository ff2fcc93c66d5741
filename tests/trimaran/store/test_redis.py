"""What is particular to a Redis server: settings, lost connections and answers, who is who."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.redis_server import RedisServer
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


def finish(body: Awaitable[Any]) -> Any:
    async def whole() -> Any:
        return await asyncio.wait_for(body, 60)

    return asyncio.run(whole())


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
def test_a_write_whose_answer_is_lost_is_done_once(shared_redis: RedisServer, write: str) -> None:
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

    lost, undisturbed = finish(life(f"lost-{write}", True)), finish(life(f"kept-{write}", False))
    assert lost == undisturbed


async def test_a_server_that_is_killed_and_restarted_under_writes_costs_time_only(
    redis_server: RedisServer,
) -> None:
    store = await open_store(redis_server.url("demo"))

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
    assert [value for _, value in await store.read("s")] == list(range(1, 601))
    await store.close()


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
            (
                *("--appendonly", "yes", "--appendfsync", "always"),
                "--maxmemory-policy",
                "allkeys-lru",
            ),
            "maxmemory-policy is allkeys-lru, not noeviction",
        ),
    ],
)
def test_settings_that_lose_data_are_refused_or_named(
    tmp_path: Path, redis_program: str, settings: tuple[str, ...], named: str
) -> None:
    server = RedisServer(tmp_path / "redis", *settings).start()

    async def body() -> None:
        with pytest.raises(InputError, match=f"{named}.*accept with durability=weak"):
            await open_store(server.url("demo"))
        store = await open_store(server.url("demo", "&durability=weak"))
        assert store.durability.startswith("weak: ") and named in store.durability
        await store.put("a", 1)
        await store.close()

    try:
        finish(body())
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


def test_a_url_says_where_and_how(tmp_path: Path, redis_server: RedisServer) -> None:
    port = redis_server.port
    with redis.Redis(port=port) as client:
        client.acl_setuser(
            "ours", enabled=True, passwords=["+s3cret"], keys=["*"], commands=["+@all"]
        )
        client.acl_setuser("default", enabled=False)
    password = tmp_path / "password"
    password.write_text("s3cret\n")

    async def body() -> None:
        for url in (
            f"redis://ours:s3cret@127.0.0.1:{port}/0",
            f"redis://ours@127.0.0.1:{port}/0?password_file={password}",
        ):
            store = await open_store(url)
            await store.put("a", 1)
            await store.close()
        for wrong in ("ours:wr0ng@", ""):
            with pytest.raises(InputError, match="refuses us .*see user and password") as refused:
                await open_store(f"redis://{wrong}127.0.0.1:{port}/0")
            assert "wr0ng" not in str(refused.value)

    finish(body())
    for url, why in {
        "redis://:s3cret@": "names no host",
        "redis://:s3cret@host:port": "both of them numbers",
        "redis://:s3cret@host/db": "both of them numbers",
        "redis://:s3cret@host?a=s3cret": "no option a; there are prefix, durability",
        "redis://:s3cret@host?durability=some": "durability some; give full or weak",
        "redis://:s3cret@host?prefix=": "prefix '': give|prefix ''; give one without braces",
        "redis://:s3cret@host?password_file=/nowhere": "password_file /nowhere cannot be read",
    }.items():
        with pytest.raises(InputError, match=why) as error:
            asyncio.run(open_store(url))
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


def test_tls(tmp_path: Path, redis_program: str) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key)),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", str(certificate)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    server = RedisServer(tmp_path / "redis")
    port = server.port
    RedisServer.__init__(server, server.folder)  # a second port, for plain connections
    server.settings += ("--tls-port", str(port), "--tls-auth-clients", "yes")
    server.settings += ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    server.settings += ("--tls-ca-cert-file", str(certificate))
    server.start()

    async def body() -> None:
        url = f"rediss://127.0.0.1:{port}/0?ca_file={certificate}"
        store = await open_store(f"{url}&cert_file={certificate}&key_file={key}")
        await store.put("a", 1)
        assert await value_of(store, "a") == 1
        await store.close()
        unknown = RedisStore(url, timeout=0.5)
        with pytest.raises(UnavailableError):
            await unknown.get("a")
        await unknown.close()

    try:
        finish(body())
    finally:
        server.kill()
