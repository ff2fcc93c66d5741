"""The manager asks a run's processes where they answer now, also one that has taken the run over."""

from __future__ import annotations

import json
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from services.manager.records import Managed
from services.manager.run_data.folders import Deployment, prepare
from tests.manager.fakes import (
    FakeLauncher,
    managing,
    processes_of,
    specification,
    until,
)
from tests.manager.test_external import ELSEWHERE
from tests.manager.test_runs import ANN, create, started
from tests.redis_server import RedisServer
from tests.trimaran.telemetry.test_exposition import values
from trimaran import AsyncRunClient
from trimaran.errors import InputError, NotFoundError, StateError
from trimaran.run.context import RunContext
from trimaran.run.runs import RunState, endpoints_key
from trimaran.telemetry.series import CONTROLLER_STEP
from trimaran.wire import rpc


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


async def test_a_manager_on_another_host_goes_on_with_runs_where_it_has_the_secret(
    tmp_path: Path, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare_slowly(run: Managed, deployment: Deployment) -> None:
        time.sleep(0.3)  # a question that comes meanwhile waits for the token
        prepare(run, deployment)

    monkeypatch.setattr("services.manager.manager.prepare", prepare_slowly)
    secret, other_secret = tmp_path / "secret", tmp_path / "other"
    secret.write_text("the operators secret".replace(" ", "-") + "\n")
    other_secret.write_text("a" * 32)
    url, launcher = shared_redis.url("moves"), FakeLauncher()
    async with managing(tmp_path / "1", launcher, store=url, service_token=secret) as served:
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        await processes.report(RunState.RUNNING, starts=1)
        assert processes.lease
        await processes.store.release(processes.lease)
        processes.holder = ELSEWHERE  # for managers of other folders
        await processes.take_lease()
        trust = RunContext.in_folder(tmp_path / "1" / run_id).trust
        records = [value.value for _, value in await served.manager.records.store.list_records()]
        records += [value.value for _, value in await processes.store.list_records()]
    assert trust.token and trust.token != secret.read_text().strip()
    assert trust.token not in json.dumps(records)
    (tmp_path / "1").rename(tmp_path / "gone")

    async def asked_by(folder: Path, file: Path) -> str:
        async with managing(folder, FakeLauncher(), store=url, service_token=file) as served:
            return await served.runs.process_metrics(ANN, run_id, "controller")

    async with AsyncExitStack() as stack:
        stack.push_async_callback(processes.store.close)
        server = rpc.Server("127.0.0.1:0", [], trust=trust)
        server.metrics.show(CONTROLLER_STEP, lambda: 3)
        await server.start()
        # gRPC's thread outlives a loop that leaves a server behind, and hangs or ends the process.
        stack.push_async_callback(server.stop)
        await processes.store.put(endpoints_key(run_id), {"controller": server.address})
        with pytest.raises(StateError, match="has another token than this manager"):
            await asked_by(tmp_path / "2", other_secret)
        (tmp_path / "2").rename(tmp_path / "gone-2")
        assert f"{CONTROLLER_STEP.name} 3" in await asked_by(tmp_path / "3", secret)


async def test_a_secret_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("short")
    with pytest.raises(InputError, match="must hold 16 to 256 characters"):
        async with managing(tmp_path / "runs", service_token=tmp_path / "secret"):
            pass


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
