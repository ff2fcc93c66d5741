"""`python -m benchmarks.control.store`: both stores against the bare library under each of them.

Every write is durable before it returns, on all sides: SQLite with a write-ahead log and
`synchronous=FULL`, Redis with `appendfsync always`. Rounds alternate between the sides.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis.asyncio

from benchmarks.results_file import Row
from tests.redis_server import RedisServer
from trimaran.store import Store, entries, open_store

ROUNDS, CALLS, PAGE = 5, 200, 1000
PAGES = 20
LONG_STREAM, BATCH = 1_000_000, 1000
RECORD = {"kind": "scored", "group": 1, "attempt": 1, "payload": "0" * 64, "hash": "0" * 64}
TEXT = json.dumps(RECORD)
Operation = Callable[[int], Awaitable[Any]]
Side = dict[str, Operation]


def measure_store(work: Path, quick: bool = False) -> tuple[list[Row], str]:
    """Rows and method. Needs redis-server. `quick`: with a shorter long stream."""
    server, length = (
        RedisServer(work / "redis").start(),
        LONG_STREAM // 50 if quick else LONG_STREAM,
    )
    try:
        return asyncio.run(_measure(work, server, length)), (
            f"{ROUNDS} alternating rounds of {CALLS} calls ({PAGES} of a page); one record is"
            f" {len(TEXT)} bytes of JSON, a page {PAGE} of them; ratios are calls a second"
            f" (one over the median time of a call), ours to the bare library; the long stream has {length} records, read in pages of {PAGE}"
        )
    finally:
        server.kill()


async def _measure(work: Path, server: RedisServer, length: int) -> list[Row]:
    rows: list[Row] = []
    client: Any = redis.asyncio.Redis(port=server.port, protocol=2)
    bare = {"sqlite": _bare_sqlite(work / "bare.sqlite"), "redis": _bare_redis(client)}
    urls = {"sqlite": f"sqlite:{work / 'ours.sqlite'}", "redis": server.url("ours")}
    for kind, url in urls.items():
        store = await open_store(url)
        rows += await _compare(kind, _ours(store), bare[kind])
        rows += await _measure_long_stream(kind, store, length)
        rows.append(_size_row(kind, await _stored_bytes(kind, work, client) / length))
        await store.close()
    await client.aclose()
    return rows


async def _compare(kind: str, ours: Side, bare: Side) -> list[Row]:
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(ROUNDS + 1):
        for name in ours:
            for side, operations in (("ours", ours), ("bare", bare)):
                for call in range(PAGES if name == "page" else CALLS):
                    began = time.perf_counter()
                    await operations[name](call)
                    seconds = time.perf_counter() - began
                    if number:  # the first round warms up
                        times.setdefault((name, side), []).append(seconds)
    medians = {key: 1.0 / statistics.median(values) for key, values in times.items()}
    rows: list[Row] = []
    for name in ours:
        ratio = medians[name, "ours"] / medians[name, "bare"]
        rows.append(Row(f"store_{kind}_{name}_against_bare", ratio, "ratio", None, True))
        rate = medians[name, "ours"]
        rows.append(Row(f"store_{kind}_{name}_per_second", rate, "calls/s", None, True))
    return rows


async def _measure_long_stream(kind: str, store: Store, length: int) -> list[Row]:
    began = time.perf_counter()
    for _ in range(length // BATCH):
        await store.extend("long", [RECORD] * BATCH)
    written = length / (time.perf_counter() - began)
    before, began, count = _peak_memory(), time.perf_counter(), 0
    async for _ in entries(store, "long", page=PAGE):
        count += 1
    assert count == length
    read = length / (time.perf_counter() - began)
    growth = (_peak_memory() - before) / 2**20
    return [
        Row(f"store_{kind}_records_written_per_second", written, "records/s", None, True),
        Row(f"store_{kind}_records_read_per_second", read, "records/s", None, True),
        Row(f"store_{kind}_memory_growth_of_the_read", growth, "MiB", 20.0, False),
    ]


def _size_row(kind: str, size: float) -> Row:
    return Row(f"store_{kind}_stored_bytes_per_record", size, "bytes", None, False)


async def _stored_bytes(kind: str, work: Path, client: Any) -> float:
    """Of the long stream. On a Redis server: of memory; its file holds the same and the calls."""
    if kind == "redis":
        return await client.memory_usage("{trimaran:ours}:s:long", samples=0)
    with sqlite3.connect(work / "ours.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (work / "ours.sqlite").stat().st_size


def _ours(store: Store) -> Side:
    async def fill(number: int) -> None:
        if not await store.last("page"):
            await store.extend("page", [RECORD] * PAGE * 2)
        await store.read("page", number, PAGE)

    return {
        "append": lambda number: store.extend("s", [RECORD]),
        "append_16": lambda number: store.extend("s", [RECORD] * 16),
        "put": lambda number: store.put("a", RECORD),
        "get": lambda number: store.get("a"),
        "page": fill,
    }


def _bare_sqlite(path: Path) -> Side:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE s (sequence INTEGER PRIMARY KEY, value TEXT)")
    connection.execute("CREATE TABLE page (sequence INTEGER PRIMARY KEY, value TEXT)")
    connection.execute("CREATE TABLE records (key TEXT PRIMARY KEY, value TEXT)")
    with connection:
        connection.executemany("INSERT INTO page (value) VALUES (?)", [(TEXT,)] * PAGE * 2)

    def append(count: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO s (value) VALUES (?)", [(json.dumps(RECORD),) for _ in range(count)]
        )
        connection.execute("COMMIT")

    def put() -> None:
        connection.execute("INSERT OR REPLACE INTO records VALUES ('a', ?)", (json.dumps(RECORD),))

    def get() -> Any:
        row = connection.execute("SELECT value FROM records WHERE key = 'a'").fetchone()
        return json.loads(row[0])

    def page(number: int) -> list[Any]:
        query = "SELECT sequence, value FROM page WHERE sequence > ? ORDER BY sequence LIMIT ?"
        return [(n, json.loads(value)) for n, value in connection.execute(query, (number, PAGE))]

    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    return {
        "append": lambda number: run(append, 1),
        "append_16": lambda number: run(append, 16),
        "put": lambda number: run(put),
        "get": lambda number: run(get),
        "page": lambda number: run(page, number),
    }


def _bare_redis(client: Any) -> Side:
    async def append(count: int) -> None:
        async with client.pipeline(transaction=True) as pipeline:
            for _ in range(count):
                pipeline.xadd("s", {"v": json.dumps(RECORD)})
            await pipeline.execute()

    async def get() -> Any:
        return json.loads(await client.get("a"))

    async def page(number: int) -> list[Any]:
        if not await client.exists("page"):
            async with client.pipeline() as pipeline:
                for sequence in range(1, 2 * PAGE + 1):
                    pipeline.xadd("page", {"v": json.dumps(RECORD)}, id=f"{sequence}-0")
                await pipeline.execute()
        rows = await client.xrange("page", min=f"{number + 1}-0", count=PAGE)
        return [(name, json.loads(fields[b"v"])) for name, fields in rows]

    return {
        "append": lambda number: append(1),
        "append_16": lambda number: append(16),
        "put": lambda number: client.set("a", json.dumps(RECORD)),
        "get": lambda number: get(),
        "page": page,
    }


def _peak_memory() -> float:
    """Of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for row in measure_store(Path(folder))[0]:
            print(f"{row.name:50} {row.value:12.3f} {row.unit}")
