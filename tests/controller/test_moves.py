"""Services that answer at another address than the controller knew: it finds them in the run's store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.controller.test_serve import STEPS, Pool, control, last_recorded
from trimaran.run.context import RunContext
from trimaran.run.runs import RunState, endpoints_key
from trimaran.store import open_store


async def tell(run_folder: Path, endpoints: dict[str, Any]) -> None:
    """The store, as a launcher does."""
    store = await open_store(RunContext.in_folder(run_folder).store_url)
    named = {
        "reward": endpoints["reward"],
        "weight-sync": endpoints["weight_sync"],
        "trainer-0": endpoints["trainer"][0],
        **{f"rollout-{index}": address for index, address in enumerate(endpoints["rollout"])},
    }
    await store.put(endpoints_key(run_folder.name), named)
    await store.close()


async def test_services_that_move_under_way_are_found_at_their_new_addresses(
    tmp_path: Path,
) -> None:
    """Reward, weight sync and both replicas; another controller comes with another trainer."""
    pool, run_folder = Pool(), tmp_path / "run"
    moves: list[asyncio.Task[None]] = []

    async def move() -> None:
        leaving = [server for server in pool.servers if server.address != trainer]
        await tell(run_folder, {**await pool.start(), "trainer": [trainer]})
        await asyncio.gather(*(server.stop() for server in leaving))

    async def during(step: int) -> None:
        if step == 2:
            moves.append(asyncio.create_task(move()))

    pool.trainer.during_step = during
    async with pool.serving() as endpoints:
        trainer = endpoints["trainer"][0]
        try:
            await control(tmp_path, endpoints)
        finally:
            await asyncio.gather(*moves)
    assert moves
    run = (await last_recorded(tmp_path)).run
    assert (run.state, run.step) == (RunState.SUCCEEDED, STEPS)
