"""A whole run whose store is a Redis server that dies in the middle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.controller import server as controller
from tests.controller.test_serve import Pool, configure, serve
from tests.redis_server import RedisServer
from trimaran.errors import TrimaranError
from trimaran.run.context import RunContext
from trimaran.run.network import LOOPBACK
from trimaran.run.runs import RunState
from trimaran.store import open_store


def run_on(server: RedisServer, folder: Path) -> RunContext:
    run = RunContext("run", folder / "run", server.url("run/addition-1"))
    run.folder.mkdir()
    run.write()
    return run


def test_a_server_that_is_killed_and_comes_back_costs_the_run_time_only(
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
    events = asyncio.run(serve(tmp_path, pool))
    assert events[-1].run.state is RunState.SUCCEEDED
    assert trained == [1, 2, 3, 4]
    assert not (run.folder / "store.sqlite").exists()

    async def read() -> int:
        store = await open_store(run.store_url)
        try:
            return await store.last(f"ledger/{run.run_id}")
        finally:
            await store.close()

    assert asyncio.run(read()) > 20


def test_a_server_that_lost_the_end_of_the_ledger_ends_the_run_and_is_named(
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

    async def body() -> None:
        """Nothing watches: an event of the end cannot be written any more."""
        endpoints = {**await pool.start(), "controller": LOOPBACK.free_address()}
        run = RunContext.in_folder(tmp_path / "run")
        try:
            await asyncio.wait_for(controller.serve(configure(tmp_path, endpoints), run), 60)
        finally:
            await pool.stop()

    with pytest.raises(TrimaranError, match="the store has gone back: it had acknowledged"):
        asyncio.run(body())
    assert trained == [1, 2]
