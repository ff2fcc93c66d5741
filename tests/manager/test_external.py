"""A manager whose runs' services others start, and one that takes over from another host."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from commands.launch.joining.joining import join_run
from commands.launch.joining.service_records import read_services
from services.manager.run_data.folders import Deployment, granted_config, own_folder, prepare
from services.manager.settings import load_settings
from tests.manager.fakes import FakeLauncher, managing, until
from tests.manager.test_runs import ANN, create, started, state_of, waiting_for
from tests.redis_server import RedisServer
from trimaran.errors import InputError, NotFoundError
from trimaran.run.context import RunContext
from trimaran.run.runs import RunState, call_key, config_key
from trimaran.store import open_store
from trimaran.trust.access import Trust

TOKEN = "d" * 32
POOLS = {"cluster": {"device": "npu", "slots": 8}}
ELSEWHERE = "gpu-8/00000000/4026531836 4711 182345"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "service-token"
    path.write_text(TOKEN + "\n")
    return path


def test_what_external_services_need_and_what_they_alone_may_have(tmp_path: Path) -> None:
    external = {"folder": tmp_path, "launcher": "external"}
    with pytest.raises(InputError) as refused:
        load_settings(None, external).check_launcher()
    for key in ("store: a file of this machine", "service_token: missing", "pools: missing"):
        assert f"launcher: external: {key}" in str(refused.value)
    far = load_settings(None, {}, ["pools.far.device=npu", "pools.far.slots=4"])
    with pytest.raises(InputError, match="pools.far: slots of npu are for launcher: external"):
        far.check_launcher()
    [pool] = far.find_pools()
    assert (pool.kind, len(pool.devices)) == ("npu", 4)
    with pytest.raises(InputError, match="sets: is for launcher: external"):
        load_settings(None, overrides=["sets=2"]).check_launcher()
    assert load_settings(None).policy.sets == 0
    assert load_settings(None, external).policy.sets == 1
    assert load_settings(None, external, ["sets=2"]).policy.sets == 2


async def test_a_run_calls_while_it_has_devices_and_its_devices_are_its_services_own(
    tmp_path: Path, shared_redis: RedisServer, token_file: Path
) -> None:
    url = shared_redis.url("external-calls")
    launcher = FakeLauncher()
    given = {"store": url, "launcher": "external", "service_token": token_file, "pools": POOLS}
    async with managing(tmp_path / "runs", launcher, **given) as served:
        store = served.manager.records.store
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        record = None
        while record is None:
            record = await store.get(call_key(run_id))
            await asyncio.sleep(0.01)
        run = served.manager.records.get(run_id)
        assert record.value == {"since": run.queued_at}
        assert run.grant.devices
        assert granted_config(run, has_devices=False).trainer.devices == "auto"
        context = RunContext.in_folder(Path(run.folder))
        assert (context.launcher, context.trust.token) == ("external", TOKEN)
        assert TOKEN not in json.dumps([r.value for _, r in await store.list_records()])
        with pytest.raises(NotFoundError, match="where its engine keeps it"):
            [line async for line in served.runs.logs(ANN, run_id, "trainer-0")]

        await served.runs.pause(ANN, run_id)
        await processes.report(RunState.PAUSED, step=3)
        launcher.there.pop(run_id)
        await until(lambda: state_of(served, run_id) is RunState.PAUSED)
        while await store.get(call_key(run_id)):
            await asyncio.sleep(0.01)


async def test_a_second_run_waits_until_the_services_have_ended_the_first(
    tmp_path: Path, shared_redis: RedisServer, token_file: Path
) -> None:
    """Also where there are devices for both."""
    launcher = FakeLauncher()
    given = {"store": shared_redis.url("external-two"), "launcher": "external", "pools": POOLS}
    async with managing(tmp_path / "runs", launcher, service_token=token_file, **given) as served:
        first, second = [await create(served, tmp_path, request) for request in ("1", "2")]
        processes = await started(served, launcher, first)
        await processes.report(RunState.RUNNING, step=1)
        why = "another run to end: the services serve 1 at a time"
        await until(lambda: waiting_for(served, second) == why)
        await processes.report(RunState.SUCCEEDED, step=20)
        await until(lambda: served.manager.records.get(first).step == 20)
        assert state_of(served, second) is RunState.QUEUED  # its launcher is there yet
        launcher.there.pop(first)
        processes = await started(served, launcher, second)
        assert state_of(served, first) is RunState.SUCCEEDED
        assert launcher.events == [f"start {first}", f"start {second}"]


async def test_who_joins_takes_the_lowest_free_index_of_a_run_that_goes_on(
    shared_redis: RedisServer,
) -> None:
    url = shared_redis.url("external-joins")
    store = await open_store(url)
    run_url = shared_redis.url("external-joins/run/demo-1")
    run_store = await open_store(run_url)
    await store.put(call_key("demo-1"), {"since": 1.0})
    config = {
        "model": {"path": "m"},
        "data": {"train": "d"},
        "reward": {"rules": {"exact_match": 1}},
        "rollout": {"replicas": 1, "max_replicas": 2},
    }
    await run_store.put(config_key("demo-1"), config)
    await run_store.put("run/demo-1", {"state": "paused"})
    joining = asyncio.create_task(join_run(url, "rollout", None, seconds=20.0))
    await asyncio.sleep(0.5)
    assert not joining.done()  # nobody has started this run again yet
    await run_store.put("run/demo-1", {"state": "starting"})
    place = await joining
    assert (place.run_id, place.index) == ("demo-1", 0)
    assert set(await read_services(run_store, "demo-1")) == {"rollout-0"}
    with pytest.raises(Exception, match="run demo-2 has not needed a rollout for 0 s"):
        await join_run(url, "rollout", None, "demo-2", seconds=0.0)
    await run_store.close()
    await store.close()


async def test_a_launcher_on_another_host_is_left_alone_while_it_has_its_lease(
    tmp_path: Path, shared_redis: RedisServer
) -> None:
    """Nobody sees its process here. When its lease ends, the run goes on from here."""
    launcher = FakeLauncher()
    url = shared_redis.url("external-elsewhere")
    async with managing(tmp_path / "first", launcher, store=url) as served:
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        processes.holder = ELSEWHERE
        assert processes.lease
        await processes.store.release(processes.lease)
        await processes.take_lease()
        folder = served.manager.records.get(run_id).folder
        await processes.report(RunState.RUNNING, step=2, starts=1)
        await until(lambda: state_of(served, run_id) is RunState.RUNNING)
    # A host that has nothing of the one before but the store.
    Path(folder).rename(tmp_path / "gone")
    other = FakeLauncher()
    async with managing(tmp_path / "second", other, store=url) as served:
        await asyncio.sleep(1.0)
        assert other.events == [] and state_of(served, run_id) is RunState.RUNNING
        await processes.store.renew(processes.lease, 0.01)
        await until(lambda: other.events == [f"start {run_id}"])
        run = served.manager.records.get(run_id)
        assert run.folder == str(tmp_path / "second" / run_id)
        assert {path.name for path in Path(run.folder).iterdir()} == {
            "config.yaml",
            "context.json",
            "logs",
            "token",
        }


async def test_a_context_follows_what_the_manager_is_told_now(
    tmp_path: Path, shared_redis: RedisServer
) -> None:
    async with managing(tmp_path / "runs", store=shared_redis.url("external-context")) as served:
        run = served.manager.records.get(await create(served, tmp_path))
    own = RunContext.in_folder(Path(run.folder)).trust.token
    prepare(run, Deployment("external", Trust(TOKEN)))
    context = RunContext.in_folder(Path(run.folder))
    assert own != TOKEN and (context.trust.token, context.launcher) == (TOKEN, "external")
    for launcher in ("local", "ray"):
        Path(run.folder, "token").write_text(own)
        prepare(run, Deployment(launcher, Trust(TOKEN)))
        assert RunContext.in_folder(Path(run.folder)).trust.token == own  # its services show it
    moved = own_folder(run, tmp_path / "other", "redis://host:6379/0?prefix=here")
    assert moved.folder == run.folder  # it is there
    assert moved.store_url == f"redis://host:6379/0?prefix=here/run/{run.run_id}"
    assert own_folder(run, tmp_path / "other", "sqlite:/m.sqlite") == run
