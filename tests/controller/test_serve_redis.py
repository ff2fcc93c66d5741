"""A whole run whose store is a Redis server that dies in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.controller.test_serve import Pool, control, serve
from tests.redis_server import RedisServer
from trimaran.errors import TrimaranError
from trimaran.run.context import RunContext
from trimaran.run.runs import RunState
from trimaran.store import open_store


def run_on(server: RedisServer, folder: Path) -> RunContext:
    run = RunContext("run", folder / "run", server.url("run/addition-1"))
    run.folder.mkdir()
    run.write()
    return run


async def test_a_server_that_is_killed_and_comes_back_costs_the_run_time_only(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    run, pool, trained = run_on(redis_server, tmp_path), Pool(), list[int]()

    async def die(step: int) -> None:
        trained.append(step)
        await asyncio.to_thread(redis_server.kill)
        asyncio.get_running_loop().call_later(
            0.3, lambda: asyncio.ensure_future(asyncio.to_thread(redis_server.start))
        )

    pool.trainer.during_step = die
    events = await serve(tmp_path, pool)
    assert events[-1].run.state is RunState.SUCCEEDED
    assert trained == [1, 2, 3, 4]
    assert not (run.folder / "store.sqlite").exists()

    store = await open_store(run.store_url)
    assert await store.last(f"ledger/{run.run_id}") > 20
    await store.close()


async def test_a_server_that_lost_the_end_of_the_ledger_ends_the_run_and_is_named(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    run_on(redis_server, tmp_path)
    pool, trained = Pool(), list[int]()

    async def tear(step: int) -> None:
        trained.append(step)
        if step == 2:
            await asyncio.to_thread(redis_server.kill)
            # The last write alone would not do: its acknowledgement may not have been sent yet.
            redis_server.halve()
            await asyncio.to_thread(redis_server.start)

    pool.trainer.during_step = tear

    async with pool.serving() as endpoints:  # nothing watches: no event can be written any more
        with pytest.raises(TrimaranError, match="the store has gone back: it had acknowledged"):
            await control(tmp_path, endpoints)
    assert trained == [1, 2]
