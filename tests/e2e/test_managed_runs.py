"""`trimaran up` with two real runs at once on a tiny model: a launcher dies, a run is paused and resumed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import runs
from trimaran.clients import AsyncRunClient
from trimaran.run.runs import EventKind, Run, RunState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
SECONDS = 240.0


@pytest.fixture(autouse=True)
def ended(tmp_path: Path) -> Generator[None]:
    """A test that fails leaves nothing running: launchers outlive the manager on purpose."""
    yield
    for process in runs.processes(tmp_path, "launch"):
        process.kill()


def manager(tmp_path: Path) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    return runs.manager(
        *("--folder", tmp_path / "managed", "--address", "127.0.0.1:0", "--http", "127.0.0.1:0"),
        run_folder_parent=tmp_path,
    )


def tree_of(path: Path, **sections: Any) -> dict[str, Any]:
    tree = yaml.safe_load(path.read_text())
    del tree["run"]["folder"]  # the manager chooses it
    for name in ("train", "validation"):
        tree["data"][name] = str(path.parent / tree["data"][name])
    for name, values in sections.items():
        tree[name] |= values
    return tree


async def until(client: AsyncRunClient, run_id: str, *states: RunState, step: int = 0) -> Run:
    async with asyncio.timeout(SECONDS):
        while True:
            run = await client.get_run(run_id)
            if run.state in states and run.step >= step:
                return run
            assert not run.state.has_ended, run
            await asyncio.sleep(0.2)


def test_two_runs_at_once_of_which_one_loses_its_launcher_and_one_is_paused(write_run, tmp_path):
    """The first one's pools take turns on one device."""
    path = write_run()

    async def body(address: str) -> None:
        async with AsyncRunClient(address) as client:
            config = tree_of(path, run={"steps": 6, "keep_payloads": "all"})
            in_turns = ["run.pools=colocated"]
            first = (await client.create_run(config, in_turns, request_id="1")).run_id
            second = (await client.create_run(config, request_id="2")).run_id
            await until(client, second, RunState.RUNNING)
            await client.pause_run(second)
            await until(client, first, RunState.RUNNING, step=1)
            [launcher] = runs.processes(tmp_path, "launch", str(tmp_path / "managed" / first))
            launcher.send_signal(signal.SIGKILL)
            await until(client, second, RunState.PAUSED)
            assert not runs.processes(tmp_path, str(tmp_path / "managed" / second))
            await client.resume_run(second)
            for run_id in (first, second):
                run = await until(client, run_id, RunState.SUCCEEDED)
                assert run.step == 6 and run.error == "" and run.reward is not None
                assert (await client.get_config(run_id))["run"]["steps"] == 6
                events = [event async for event in client.watch_run(run_id)]
                steps = [e.run.step for e in events if e.kind is EventKind.STEP]
                assert sorted(set(steps)) == list(range(1, 7))
                assert events[-1].kind is EventKind.FINISHED
                assert (await client.get_ledger(run_id)).sound
                life = await client.get_ledger(run_id, group=0)
                assert "issued" in "\n".join(life.lines)
                held_out = (await client.get_samples(run_id)).samples
                assert all(sample.prompt_id and sample.terms for sample in held_out)
                last = (await client.get_samples(run_id, trained_step=6)).samples
                assert len(last) == 8 and last[0].prompt.endswith("= ?")
                checkpoints = await client.list_checkpoints(run_id)
                assert all(checkpoint.root for checkpoint in checkpoints)
                kept = [c for c in checkpoints if c.kept]
                assert kept and (Path(kept[-1].path) / "state.json").exists()
            assert (await client.get_run(first)).starts == 2
            await client.delete_run(first)
            assert not (tmp_path / "managed" / first).exists()

    with manager(tmp_path) as (_, address):
        asyncio.run(body(address))
    assert runs.survivors(tmp_path) == []
