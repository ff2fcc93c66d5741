"""Trainer ranks are replaced while the run has no launcher: nothing is reported, and they meet again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.e2e import runs
from tests.e2e.engines import Engine
from tests.e2e.test_external import manager, process_of, until, wait_for
from tests.e2e.test_managed_runs import tree_of
from tests.redis_server import RedisServer
from trimaran.clients import AsyncRunClient
from trimaran.run.exits import LEFT_BEHIND
from trimaran.run.runs import RunState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
KINDS = {
    "reward": ("reward", "auto"),
    "weight-sync": ("weight-sync", "auto"),
    "trainer-0": ("trainer", "0"),
    "trainer-1": ("trainer", "1"),
    "controller": ("controller", "auto"),
    "rollout": ("rollout", "auto"),
}


@pytest.fixture
def make_engine(redis_server: RedisServer, tmp_path: Path) -> Generator[Callable[..., Engine]]:
    store, token = tmp_path / "store-url", tmp_path / "service-token"
    store.write_text(redis_server.url("managed") + "\n")
    token.write_text("d" * 32 + "\n")
    token.chmod(0o600)
    made: list[Engine] = []

    def make(name: str, kind: str, index: str) -> Engine:
        hosts = tmp_path / "hosts"
        made.append(Engine(hosts, kind, name, store, token, tmp_path, index=index))
        return made[-1].start()

    yield make
    for engine in made:
        engine.kill()
    for process in runs.processes(tmp_path):
        process.kill()


def test_ranks_meet_again_after_one_was_replaced_that_no_launcher_knew(
    write_run: Callable[..., Path], make_engine: Callable[..., Engine], tmp_path: Path
) -> None:
    # Each engine has a folder of its own.
    shared = {"checkpoints": str(tmp_path / "shared")}
    path = write_run(
        run={"max_lag": 1, "checkpoint_every": 20} | shared, trainer={"data_parallel": 2}
    )
    engines = {name: make_engine(name, *kind) for name, kind in KINDS.items()}

    async def begin(address: str) -> str:
        async with AsyncRunClient(address) as client:
            run_id = (await client.create_run(tree_of(path, run={"steps": 100_000}))).run_id
            await until(client, run_id, RunState.RUNNING, step=2)
            return run_id

    async def replace(rank: int, other: int) -> None:
        """The one as a rollback does it; the other, which is idle, sees it for itself."""
        before = {rank: served(rank), other: served(other)}
        process_of(tmp_path, "trainer", rank).send_signal(signal.SIGKILL)
        left = engines[f"trainer-{other}"]
        await wait_for(lambda: left.codes[-1:] == [LEFT_BEHIND], f"the end of rank {other}")
        await wait_for(
            lambda: all(served(each) > count for each, count in before.items()), "both to serve"
        )

    def served(rank: int) -> int:
        return engines[f"trainer-{rank}"].log.count(f"rank {rank} serves")

    async def go_on(address: str, run_id: str) -> None:
        async with AsyncRunClient(address) as client:
            step = (await client.get_run(run_id)).step
            await until(client, run_id, RunState.RUNNING, step=step + 2)
            await client.cancel_run(run_id)
            await until(client, run_id, RunState.CANCELLED)

    with manager(tmp_path, "first") as (process, address):
        run_id = asyncio.run(begin(address))
        for lost in (process, *runs.processes(tmp_path, "launch")):
            lost.send_signal(signal.SIGKILL)
        process.wait()
    engines["controller"].stop()
    asyncio.run(replace(0, other=1))
    asyncio.run(replace(1, other=0))
    engines["controller"].start()
    with manager(tmp_path, "first") as (_, address):
        asyncio.run(go_on(address, run_id))
    for engine in engines.values():
        engine.stop()
    assert runs.survivors(tmp_path) == []
