"""A disk without a byte of room under the manager's store and the runs'."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.manager.fakes import DEADLINE, FAST, FakeLauncher, asynchronous, managing, until
from tests.manager.test_runs import ANN, create, started
from tests.tiny_disk import disk, empty, fill
from trimaran.run.runs import RunState

__all__ = ["disk"]


@asynchronous
async def test_a_run_whose_store_is_full_is_told_as_held_and_left_alone(
    tmp_path: Path, disk: Path
) -> None:
    """Its launcher cannot renew its lease then. That is no sign of a frozen one, nor afterwards."""
    launcher, times = FakeLauncher(), replace(FAST, first_lease=0.0, lapse=3.0)
    async with managing(disk / "runs", launcher, times) as served:
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        await processes.report(RunState.RUNNING, step=7)
        await until(lambda: served.manager.records.get(run_id).step == 7)
        assert processes.lease and (await served.runs.get(ANN, run_id)).held == ""
        await processes.store.renew(processes.lease, 0.01)
        fill(disk)
        await until(lambda: served.manager.troubles)
        for _ in range(60):  # longer than a launcher may be without a lease
            [listed], _ = await served.runs.list(ANN)
            for run in (await served.runs.get(ANN, run_id), listed):
                assert run.state is RunState.RUNNING
                assert f"{run_id}/store.sqlite: its disk is full; make room" in run.held
            await asyncio.sleep(0.1)
        # Its time begins now. It takes a busy machine long to renew the lease.
        served.manager._times = replace(times, lapse=DEADLINE)
        empty(disk)
        await until(lambda: run_id in served.manager._lapsed)
        await processes.store.renew(processes.lease, 60.0)
        await until(lambda: not served.manager.troubles and run_id not in served.manager._lapsed)
        assert (await served.runs.get(ANN, run_id)).held == ""
        assert launcher.events == [f"start {run_id}"]
