"""The manager asks a run's processes where they answer now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manager.fakes import FakeLauncher, managing
from tests.manager.test_runs import ANN, asynchronous, create, started
from trimaran import rpc
from trimaran.errors import NotFoundError
from trimaran.run_context import RunContext
from trimaran.runs import RunState, endpoints_key
from trimaran.series import CONTROLLER_STEP


@asynchronous
async def test_metrics_come_from_where_a_process_listens_now(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        await processes.report(RunState.RUNNING)
        trust = RunContext.in_folder(tmp_path / "runs" / run_id).trust
        assert trust.token
        for step in (3, 4):  # the second one at another port; the first one is gone by then
            server = rpc.Server("127.0.0.1:0", [], trust=trust)
            server.metrics.show(CONTROLLER_STEP, lambda: step)  # noqa: B023
            await server.start()
            await processes.store.put(endpoints_key(run_id), {"controller": server.address})
            text = await served.runs.process_metrics(ANN, run_id, "controller")
            assert f"{CONTROLLER_STEP.name} {step}" in text
            await server.stop()
        await processes.store.close()


@asynchronous
async def test_a_process_without_an_address_is_not_asked(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        await processes.report(RunState.RUNNING)
        addresses = {"controller": "127.0.0.1:7000", "rollout-4": ""}
        await processes.store.put(endpoints_key(run_id), addresses)
        assert set(await served.runs.processes(ANN, run_id)) == {"controller"}
        with pytest.raises(NotFoundError, match="rollout-4"):
            await served.runs.process_metrics(ANN, run_id, "rollout-4")
        await processes.store.close()
