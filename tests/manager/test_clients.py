"""Our own client, a browser and Prometheus at a real manager; only the runs' processes are fakes."""

from __future__ import annotations

from pathlib import Path

import httpx
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
from trimaran.run.context import RunContext
from trimaran.wire import rpc


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
