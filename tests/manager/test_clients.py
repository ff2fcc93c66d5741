"""Our own client, a browser and Prometheus at a real manager; only the runs' processes are fakes."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import yaml

from tests.manager.fakes import (
    FakeLauncher,
    asynchronous,
    managing,
    processes_of,
    specification,
    until,
)
from tests.trimaran.telemetry.test_exposition import values
from trimaran import AsyncRunClient
from trimaran.errors import NotFoundError, StateError
from trimaran.run.context import RunContext
from trimaran.run.runs import EventKind, Run, RunState
from trimaran.wire import rpc


@asynchronous
async def test_a_run_from_submit_to_its_metrics(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with (
        managing(tmp_path / "runs", launcher) as served,
        AsyncRunClient(served.address) as client,
    ):
        tree = yaml.safe_load(specification(tmp_path))
        run = await client.create_run(tree, ["run.steps=2"], request_id="mine")
        assert await client.create_run(tree, ["run.steps=2"], request_id="mine")
        assert [each.run_id async for each in client.list_runs()] == [run.run_id]
        await until(lambda: launcher.contexts.get(run.run_id))
        async with processes_of(launcher.contexts[run.run_id]) as processes:
            await processes.take_lease()
            await processes.report(RunState.RUNNING)
            for step in (1, 2):
                now = Run(run.run_id, RunState.RUNNING, step, 2)
                await processes.emit(EventKind.STEP, now, **{"reward/completion/mean": step / 4})
            rows = await client.metrics(run.run_id)  # while it runs
            assert [(row["step"], row["reward/completion/mean"]) for row in rows] == [
                (1, 0.25),
                (2, 0.5),
            ]
            await until(lambda: served.manager.records.get(run.run_id).state is RunState.RUNNING)
            assert (await client.scale_run(run.run_id, 1, 3)).replicas.max == 3
            assert (await client.pause_run(run.run_id)).state is RunState.PAUSING
            assert (await client.pause_run(run.run_id)).state is RunState.PAUSING
            assert (await client.cancel_run(run.run_id)).state is RunState.CANCELLING
            with pytest.raises(StateError):
                await client.delete_run(run.run_id)
            await processes.report(RunState.CANCELLED, step=2)
        launcher.there.clear()
        assert (await client.wait_run(run.run_id, timeout=30)).state is RunState.CANCELLED
        kinds = [event.kind async for event in client.watch_run(run.run_id)]
        assert kinds.count(EventKind.STEP) == 2 and kinds[-1] is EventKind.FINISHED
        assert await client.get_samples(run.run_id)
        assert (await client.get_ledger(run.run_id)).sound
        await client.delete_run(run.run_id)
        with pytest.raises(NotFoundError):
            await client.get_run(run.run_id)


@asynchronous
async def test_prometheus_finds_the_processes_of_a_run(tmp_path: Path) -> None:
    """Each shows the token of its run, which only the manager and the run's processes have."""
    launcher = FakeLauncher()
    async with (
        managing(tmp_path / "runs", launcher) as served,
        httpx.AsyncClient(base_url=f"http://{served.http_address}") as http,
        AsyncRunClient(served.address) as client,
    ):
        run = await client.create_run(yaml.safe_load(specification(tmp_path)))
        await until(lambda: launcher.contexts.get(run.run_id))
        folder = launcher.contexts[run.run_id].folder
        trust = RunContext.in_folder(folder).trust
        assert trust.token
        process = rpc.Server("127.0.0.1:0", [], trust=trust)
        await process.start()
        async with processes_of(launcher.contexts[run.run_id]) as processes:
            await processes.store.put(f"endpoints/{run.run_id}", {"reward": process.address})
        [target] = (await http.get("/metrics/targets")).json()
        assert target["targets"] == [served.http_address]
        assert target["labels"]["process"] == "reward"
        told = await http.get(target["labels"]["__metrics_path__"])
        assert told.status_code == 200, told.text
        assert ("process_resident_memory_bytes",) in values(told.text)
        own = values((await http.get("/metrics")).text)
        assert own["trimaran_manager_runs", "starting"] == 1
        assert own["trimaran_manager_runs", "queued"] == 0
        assert own["trimaran_manager_queue_wait_seconds",] == 0
        assert own["trimaran_store_duration_seconds_count", "put_fenced"] > 0
        used = own["trimaran_manager_devices", "gpu", "used"]
        assert used > 0
        assert own["trimaran_manager_devices", "gpu", "free"] == 8 - used
        assert own["trimaran_rpc_calls_total", "OK", "RunService/CreateRun"] == 1
        await process.stop()
        lost = await http.get(target["labels"]["__metrics_path__"])
        assert lost.status_code == 503
        assert (await http.get(f"/v1/runs/{run.run_id}")).json()["state"] == "starting"
