"""A manager and its runs on one Redis server, which dies. Real processes; the runs are scripted."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.manager.fakes import FAST, FakeLauncher, managing
from tests.manager.fakes import until as becomes
from tests.manager.test_processes import (
    DEADLINE,
    ManagerProcess,
    folder,
    manager,
    marked,
    submit,
    until,
)
from tests.manager.test_runs import ANN, create, started
from tests.redis_server import RedisServer
from trimaran import AsyncRunClient
from trimaran.errors import UnavailableError
from trimaran.run.runs import RunState
from trimaran.v1 import run_pb2 as pb

__all__ = ["folder"]
pytestmark = pytest.mark.e2e


@contextmanager
def watched(stub: Any, run_id: str) -> Iterator[list[pb.RunEvent]]:
    """The run's events, as they come."""
    seen: list[pb.RunEvent] = []
    call = stub.WatchRun(pb.WatchRunRequest(run_id=run_id), timeout=DEADLINE)

    def read() -> None:
        seen.extend(answer.event for answer in call)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
        thread.join(DEADLINE)
        assert not thread.is_alive()
    finally:
        call.cancel()
        thread.join()


def keys(server: RedisServer, run_id: str) -> set[str]:
    with redis.Redis(port=server.port, decode_responses=True) as client:
        return {key for key in client.scan_iter() if run_id in key}


def steps_on(process: ManagerProcess, run_id: str) -> None:
    step = process.get(run_id).step
    until(lambda: process.get(run_id).step > step)


def test_a_redis_that_is_killed_disturbs_no_run_and_a_deleted_run_leaves_nothing(
    folder: Path, redis_server: RedisServer
) -> None:
    url = redis_server.url("demo")
    with manager(folder, url) as process:
        one, other = [submit(process, folder, str(number)) for number in range(2)]
        launchers = sorted(marked(folder, "scripted_launch"))
        with watched(process.stub, one) as events, watched(process.stub, other) as others:
            redis_server.kill()
            seen = len(events), len(others)
            redis_server.start()
            for run_id in (one, other):
                steps_on(process, run_id)
            until(lambda: len(events) > seen[0] and len(others) > seen[1])
            for run_id in (one, other):
                process.stub.CancelRun(pb.CancelRunRequest(run_id=run_id), timeout=DEADLINE)
                until(lambda run_id=run_id: process.get(run_id).state == pb.Run.STATE_CANCELLED)
                assert process.get(run_id).starts == 1
        for run_id, found in {one: events, other: others}.items():
            assert [event.sequence for event in found] == list(range(1, len(found) + 1))
            steps = [event.run.step for event in found if event.kind == pb.RunEvent.KIND_STEP]
            assert steps == list(range(1, len(steps) + 1))
            assert {event.run.run_id for event in found} == {run_id}
            assert found[-1].kind == pb.RunEvent.KIND_FINISHED
            pids = {event.values["pid"] for event in found if "pid" in event.values}
            assert pids <= set(launchers) and len(pids) == 1
        kept = keys(redis_server, other)
        assert keys(redis_server, one) and kept
        process.stub.DeleteRun(pb.DeleteRunRequest(run_id=one), timeout=DEADLINE)
        assert (keys(redis_server, one), keys(redis_server, other)) == (set(), kept)
        with watched(process.stub, other) as again:
            pass
        assert again == others
        process.send(signal.SIGINT)
        process.wait()
    with manager(folder, url) as second:
        runs = second.stub.ListRuns(pb.ListRunsRequest(), timeout=DEADLINE).runs
        assert [run.run_id for run in runs] == [other]
    assert marked(folder) == []


async def test_leases_that_ended_while_redis_was_away_are_no_signs_of_frozen_launchers(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    launcher, times = FakeLauncher(), replace(FAST, first_lease=0.0, lapse=DEADLINE)
    url = redis_server.url("demo")
    async with managing(tmp_path / "runs", launcher, times, store=url) as served:
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        assert processes.lease
        await processes.store.renew(processes.lease, 0.3)
        await asyncio.to_thread(redis_server.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(redis_server.start)
        await processes.report(RunState.RUNNING, step=7)
        await becomes(lambda: served.manager.records.get(run_id).step == 7)
        await processes.store.renew(processes.lease, 60.0)
        assert launcher.events == [f"start {run_id}"]
        assert (await served.runs.get(ANN, run_id)).starts == 1


async def test_while_redis_is_away_callers_hear_of_the_store_in_time(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """Reads, writes, and what waits for a write of the loop; then all goes on."""
    async with managing(tmp_path / "runs", store=redis_server.url("demo")) as served:
        run_id = await create(served, tmp_path)
        # Long enough that the answer is in time on a busy machine, too.
        async with AsyncRunClient(served.address, timeout=15.0) as client:
            await client.list_checkpoints(run_id)
            await asyncio.to_thread(redis_server.kill)
            assert (await client.get_run(run_id)).run_id == run_id
            calls = [
                client.list_checkpoints(run_id),
                client.pause_run(run_id),
                client.cancel_run(run_id),
                client.get_ledger(run_id),
            ]
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                assert type(answer) is UnavailableError
                assert "store" in str(answer) and "does not answer" in str(answer)
            await asyncio.to_thread(redis_server.start)
            assert await client.list_checkpoints(run_id) == ()
