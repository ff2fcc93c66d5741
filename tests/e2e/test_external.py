"""Services that a container engine starts, each with a disk of its own: a run comes, is disturbed, ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import yaml

from tests.e2e import runs
from tests.e2e.engines import Engine
from tests.e2e.test_episodes_run import PATIENT, model_of_turns
from tests.e2e.test_managed_runs import tree_of
from tests.redis_server import RedisServer
from trimaran.clients import AsyncRunClient
from trimaran.errors import NotFoundError
from trimaran.run.runs import EventKind, Run, RunState
from trimaran.trust.allowed import ALLOW_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
SECONDS = 240.0
KINDS = {
    "reward": "reward",
    "weight-sync": "weight-sync",
    "trainer": "trainer",
    "controller": "controller",
    "rollout-a": "rollout",
    "rollout-b": "rollout",
}


@pytest.fixture
def engines(redis_server: RedisServer, tmp_path: Path) -> Generator[dict[str, Engine]]:
    """Before there is a manager; one rollout fewer than the run may have."""
    store, token = tmp_path / "store-url", tmp_path / "service-token"
    store.write_text(redis_server.url("managed") + "\n")
    token.write_text("d" * 32 + "\n")
    token.chmod(0o600)
    made = {
        name: Engine(tmp_path / "hosts", kind, name, store, token, tmp_path)
        for name, kind in KINDS.items()
    }
    for name, engine in made.items():
        if name != "rollout-b":
            engine.start()
    yield made
    for engine in made.values():
        if engine.host.exists():
            engine.kill()
    for process in runs.processes(tmp_path):
        process.kill()


def manager(
    tmp_path: Path, folder: str
) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """On a host with this folder: the process and its address."""
    settings = {
        "folder": str(tmp_path / folder),
        "store": (tmp_path / "store-url").read_text().strip(),
        "launcher": "external",
        "service_token": str(tmp_path / "service-token"),
        "pools": {"cluster": {"device": "cpu", "slots": 6}},  # enough for two runs
        "address": "127.0.0.1:0",
        "http_address": "127.0.0.1:0",
    }
    path = tmp_path / f"{folder}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return runs.manager("--config", path, run_folder_parent=tmp_path)


async def wait_for(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.1)


async def until(client: AsyncRunClient, run_id: str, state: RunState, step: int = 0) -> Run:
    async with asyncio.timeout(SECONDS):
        while (run := await client.get_run(run_id)).state is not state or run.step < step:
            assert run.state is state or not run.state.has_ended, run
            await asyncio.sleep(0.2)
    return run


def process_of(tmp_path: Path, kind: str, index: int = 0):
    [found] = runs.processes(tmp_path, "serve", kind, "--index", str(index), "--run-folder")
    return found


async def notes_of(client: AsyncRunClient, run_id: str) -> str:
    texts: list[str] = []
    async for event in client.watch_run(run_id, until_now=True):
        if event.kind is EventKind.PROCESS:
            texts.append(event.text)
    return "\n".join(texts)


def test_a_run_of_services_that_an_engine_starts_outlives_each_of_them(
    write_run: Callable[..., Path], engines: dict[str, Engine], tmp_path: Path
) -> None:
    path = write_run(run={"max_lag": 1, "checkpoint_every": 20}, rollout={"max_replicas": 2})
    stays = set(KINDS) - {"rollout-b"}

    async def all_wait() -> None:
        """For the next run, after an end that was in order."""
        await wait_for(
            lambda: all(engines[name].log.rstrip().endswith("3600 s") for name in stays),
            "all of them to wait for the next run",
        )
        assert {name: engines[name].codes[-1] for name in stays} == dict.fromkeys(stays, 0)

    async def body(address: str) -> str:
        async with AsyncRunClient(address) as client:
            run_id = (await client.create_run(tree_of(path, run={"steps": 100_000}))).run_id
            await until(client, run_id, RunState.RUNNING, step=1)

            engines["rollout-b"].start()  # one more than the run began with
            await wait_for(
                lambda: "rollout-1 is registered" in engines["rollout-b"].log, "the second replica"
            )
            for kind in ("rollout", "trainer", "controller"):
                process_of(tmp_path, kind).send_signal(signal.SIGKILL)
                before = (await client.get_run(run_id)).step
                await until(client, run_id, RunState.RUNNING, step=before + 3)

            engines["rollout-b"].stop()  # scaled down: SIGTERM
            assert engines["rollout-b"].codes[-1] == 0
            async with asyncio.timeout(60):  # the next launcher could not know it
                while "rollout-1 has left" not in await notes_of(client, run_id):
                    await asyncio.sleep(0.1)
            with pytest.raises(NotFoundError, match="where its engine keeps it"):
                [line async for line in client.get_logs(run_id, "trainer-0")]
            return run_id

    async def elsewhere(address: str, run_id: str, pids: dict[str, int]) -> None:
        async with AsyncRunClient(address) as client:
            step = (await client.get_run(run_id)).step
            run = await until(client, run_id, RunState.RUNNING, step=step + 3)
            assert (run.folder, run.starts) == (str(tmp_path / "second" / run_id), 2)
            assert {kind: process_of(tmp_path, kind).pid for kind in pids} == pids
            await client.pause_run(run_id)
            await until(client, run_id, RunState.PAUSED)
            await all_wait()
            step = (await client.resume_run(run_id)).step
            await until(client, run_id, RunState.RUNNING, step=step + 3)
            await client.cancel_run(run_id)
            await until(client, run_id, RunState.CANCELLED)
            notes = await notes_of(client, run_id)
            assert "rollout-1 is added to the run" in notes
            assert "rollout-0 died (its engine has started another in its place)" in notes
            assert "trainer-0 died" in notes and "with controller in 1 s" in notes
            assert "controller died" in notes
            assert "rollout-1 has left (its engine has taken it away)" in notes
            assert "rollout-1 died" not in notes
            await all_wait()

            run_id = (await client.create_run(tree_of(path, run={"steps": 3}))).run_id
            await until(client, run_id, RunState.SUCCEEDED)
            await all_wait()

    with manager(tmp_path, "first") as (process, address):
        run_id = asyncio.run(body(address))
        # The manager's host is lost, with its launcher and its disk.
        pids = {kind: process_of(tmp_path, kind).pid for kind in ("trainer", "controller")}
        for lost in (process, *runs.processes(tmp_path, "launch")):
            lost.send_signal(signal.SIGKILL)
        process.wait()
    (tmp_path / "first").rename(tmp_path / "lost")
    with manager(tmp_path, "second") as (_, address):
        asyncio.run(elsewhere(address, run_id, pids))
    for name in stays:
        engines[name].stop()
    assert runs.survivors(tmp_path) == []


def test_of_two_runs_the_second_waits_and_has_the_same_services_then(
    write_run: Callable[..., Path], engines: dict[str, Engine], tmp_path: Path
) -> None:
    path = write_run(run={"max_lag": 1})

    async def body(address: str) -> list[str]:
        async with AsyncRunClient(address) as client:
            tree = tree_of(path, run={"steps": 3})
            first, second = [(await client.create_run(tree)).run_id for _ in range(2)]
            await until(client, first, RunState.RUNNING)
            waiting = await client.get_run(second)
            assert waiting.state is RunState.QUEUED
            assert "another run to end" in waiting.waiting_for
            before = await until(client, first, RunState.SUCCEEDED)
            after = await until(client, second, RunState.SUCCEEDED)
            assert before.ended_at <= after.started_at and after.starts == 1
            return [first, second]

    with manager(tmp_path, "first") as (_, address):
        run_ids = asyncio.run(body(address))
    for name in set(KINDS) - {"rollout-b"}:
        served = [run_id for run_id in run_ids if run_id in engines[name].log]
        assert served == run_ids, name
        engines[name].stop()
    assert runs.survivors(tmp_path) == []


def test_a_run_of_episodes_waits_for_an_environment_and_outlives_it(
    write_run: Callable[..., Path], engines: dict[str, Engine], tmp_path: Path
) -> None:
    code = tmp_path / "patient.py"
    code.write_text(PATIENT)
    named = f"{code}:Patient"
    path = write_run(
        model={"path": str(model_of_turns(tmp_path / "tiny"))},
        environment={"factory": named, "max_turns": 4, "max_tokens": 300},
        rollout={"group_size": 4},
    )
    like = engines["reward"]
    allowed = {ALLOW_VARIABLE: named}
    place = (like.folder, "environment", "environment", like.store, like.token, tmp_path)
    environment = Engine(*place, variables=allowed)

    async def body(address: str) -> None:
        async with AsyncRunClient(address) as client:
            run_id = (await client.create_run(tree_of(path, run={"steps": 100_000}))).run_id
            environment.start()
            await until(client, run_id, RunState.RUNNING, step=1)
            process_of(tmp_path, "environment").send_signal(signal.SIGKILL)
            before = (await client.get_run(run_id)).step
            await until(client, run_id, RunState.RUNNING, step=before + 3)
            await client.cancel_run(run_id)
            await until(client, run_id, RunState.CANCELLED)
            assert "environment-0 died (its engine has started" in await notes_of(client, run_id)

    with manager(tmp_path, "first") as (_, address):
        asyncio.run(body(address))
    environment.stop()
    for engine in engines.values():
        if engine.host.exists():
            engine.stop()
    assert runs.survivors(tmp_path) == []
