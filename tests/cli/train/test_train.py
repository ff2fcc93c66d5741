"""`trimaran train` around stand-in services."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest
import yaml

from commands.cli.main import main
from commands.launch.service_process import ServiceProcess
from tests.cli.conftest import Ran, WriteRun
from tests.launch.services import is_alive, make_services, pid_of, wait_until
from trimaran.config import RunConfig
from trimaran.run.network import LOOPBACK, is_free
from trimaran.run.runs import Run, RunState, run_key, run_to_tree
from trimaran.store.sqlite import SqliteStore

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commands.cli.train.train.LAST_EVENTS_SECONDS", 0.1)


StandIn = Callable[..., None]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """stand_in({name: what it does}): these are the services of the next run."""

    def set_up(tasks: Mapping[str, str]) -> None:
        services = make_services(tmp_path, tasks)
        monkeypatch.setattr("commands.cli.serve.launch.run_services", lambda *_: services)

    return set_up


def test_a_replica_that_dies_at_start_ends_all_and_shows_its_last_lines(
    write_run: WriteRun, tmp_path: Path, stand_in: StandIn, ran: Ran
) -> None:
    stand_in({"controller": "run", "rollout-0": "die1", "reward": "run"})
    message = ran(["train", str(write_run())], 1).err
    assert message.startswith("error: rollout-0 died at start (exit code 1)")
    assert "the engine has no wings" in message
    assert "Traceback" not in message
    for name in ("controller", "reward"):
        assert not (tmp_path / name).exists() or not is_alive(pid_of(tmp_path / name))


def test_a_rank_that_is_given_something_wrong_ends_with_2(
    write_run: WriteRun, stand_in: StandIn, ran: Ran
) -> None:
    stand_in({"controller": "run", "trainer-0": "die2"})
    assert "trainer-0" in ran(["train", str(write_run())], 2).err


def test_a_run_that_ends_well_leaves_a_resolved_configuration(
    write_run: WriteRun, tmp_path: Path, stand_in: StandIn
) -> None:
    stand_in({"controller": "die0", "reward": "run"})
    assert main(["train", str(write_run()), "run.seed=5"]) == 0
    (config,) = (tmp_path / "runs").glob("run-*/config.yaml")
    tree = yaml.safe_load(config.read_text())
    assert tree["run"]["seed"] == 5
    assert tree["data"]["train"] == str(tmp_path / "train.jsonl")
    assert tree["endpoints"]["controller"].startswith("127.0.0.1:")
    assert len(tree["endpoints"]["trainer"]) == 1
    assert main(["train", "--resume", str(config.parent)]) == 0


def test_a_run_that_has_finished_is_not_resumed(
    write_run: WriteRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stand_in: StandIn,
    ran: Ran,
) -> None:
    stand_in({"controller": "die0"})
    assert main(["train", str(write_run())]) == 0
    (config,) = (tmp_path / "runs").glob("run-*/config.yaml")
    folder = config.parent
    store = SqliteStore(folder / "store.sqlite")
    run = Run(folder.name, RunState.SUCCEEDED, step=20, num_steps=20)
    asyncio.run(store.put(run_key(folder.name), run_to_tree(run)))
    asyncio.run(store.close())
    monkeypatch.setattr("commands.cli.serve.launch.run_services", lambda *_: pytest.fail("started"))
    words = ["train", "--resume", str(folder)]
    assert "extend it with --resume" in ran(words).out
    assert "run.steps: 19, and the run has 20" in ran([*words, "run.steps=19"], 2).err
    assert "extend it with --resume" in ran([*words, "run.epochs=40"]).out

    started: list[int] = []

    def services(config: RunConfig, *_: object) -> list[ServiceProcess]:
        started.append(config.run.num_steps)
        return make_services(tmp_path, {"controller": "die0"})

    monkeypatch.setattr("commands.cli.serve.launch.run_services", services)
    assert main([*words, "run.steps=60"]) == 0
    assert started == [60]


def start(config: Path, folder: Path, view: bool = False) -> subprocess.Popen[str]:
    """A run of stand-ins that go on for ever."""
    code = f"""
import sys
from pathlib import Path
from tests.launch.services import make_services
from commands.cli.serve import launch; from commands.cli.train import train
tasks = {{"controller": "run", "reward": "run"}}
launch.run_services = lambda *_: make_services(Path({str(folder)!r}), tasks)
sys.exit(train.train({str(config)!r}, [], view={view}))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_pages_of_a_run_are_served_until_it_ends_however_it_does(
    write_run: WriteRun, tmp_path: Path, number: signal.Signals
) -> None:
    process = start(write_run(), tmp_path, view=True)
    try:
        assert process.stdout
        line = next(line for line in process.stdout if "read only at" in line)
        for name in ("controller", "reward"):
            pid_of(tmp_path / name)
        address = line.split()[-1]
        [run] = httpx.get(f"{address}/v1/runs").json()["runs"]
        assert run["state"] == "starting" and run["run_id"].startswith("run-")
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    port = int(address.rpartition(":")[2])
    wait_until(lambda: is_free(f"127.0.0.1:{port}"), "the pages to end")
    if number is signal.SIGINT:
        assert process.returncode == 128 + signal.SIGINT
        assert f"trimaran view {run['folder']} shows them again" in output


def test_a_signal_ends_all_and_names_the_way_to_go_on(write_run: WriteRun, tmp_path: Path) -> None:
    process = start(write_run(), tmp_path)
    try:
        pids = [pid_of(tmp_path / name) for name in ("controller", "reward")]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT, output
    assert "trimaran train --resume" in output
    assert "Traceback" not in output
    for pid in pids:
        wait_until(lambda pid=pid: not is_alive(pid), f"{pid} to end")


HELD_CONTROLLER = """
import asyncio, sys
from pathlib import Path
from tests.cli.train.test_progress import event
from trimaran.run.context import RunContext
from trimaran.run.events import append_event
from trimaran.run.runs import RunState, run_key, run_to_tree
from trimaran.store import open_store
from dataclasses import replace
error = "the run was paused for 1 s (reward.pause_timeout): no plugin"
async def main():
    run = RunContext.in_folder(Path(sys.argv[1]))
    store = await open_store(run.store_url)
    for told in (
        event(1, "state", 0),
        event(2, "held", 2, text="no plugin", held="no plugin"),
        event(3, "finished", 2, state=RunState.FAILED, error=error),
    ):
        told = replace(told, run=replace(told.run, run_id=run.run_id))
        await append_event(store, told)
        await store.put(run_key(run.run_id), run_to_tree(told.run))
        await asyncio.sleep(1)  # the launcher sees that the run is under way
    await store.close()
asyncio.run(main())
sys.exit("error: " + error)
"""


def test_a_run_that_was_held_too_long_ends_with_1_and_the_way_to_go_on(
    write_run: WriteRun, monkeypatch: pytest.MonkeyPatch, ran: Ran
) -> None:
    def services(config: RunConfig, folder: Path, *rest: object) -> list[ServiceProcess]:
        command = (sys.executable, "-c", HELD_CONTROLLER, str(folder))
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        log = folder / "controller.log"
        return [ServiceProcess("controller", command, environment, log, leads=True)]

    monkeypatch.setattr("commands.cli.serve.launch.run_services", services)
    out, err = ran(["train", str(write_run())], 1)
    assert "step 2: held: no plugin" in out
    assert "step 2: failed: the run was paused for 1 s" in out
    assert out.count("failed:") == 1  # the launcher adds no failure of its own
    assert "go on with: trimaran train --resume" in err


def test_a_service_runs_alone_and_ends_in_order(write_run: WriteRun, tmp_path: Path) -> None:
    address = LOOPBACK.free_address()
    path = write_run(endpoints={"reward": address})
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "commands.cli", "serve", "reward"),
            *("--config", str(path), "--run-folder", str(tmp_path)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "7"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: not is_free(address) or process.poll() is not None, "the service")
        environment = Path(f"/proc/{process.pid}/environ").read_text()
        assert "OMP_NUM_THREADS=1\0" in environment
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, log
    assert "reward INFO commands.cli.serve.serve: SIGTERM: stopping" in log
