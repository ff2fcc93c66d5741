"""Runs as their own files tell of them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from services.manager.run_data.run_stores import RunStores
from services.manager.viewing.found_runs import FoundRuns
from services.manager.viewing.recorded import LAPSE_SECONDS
from tests.manager.viewing.folders import config_of, contents, launched, make_run
from trimaran.errors import NotFoundError
from trimaran.run.runs import Replicas, RunState
from trimaran.store import Store, read_store


async def test_runs_are_found_as_they_stand(tmp_path: Path) -> None:
    config, runs = config_of(tmp_path), tmp_path / "runs"
    old = 2 * LAPSE_SECONDS
    ended = make_run(runs / "ended", config, old)
    async with launched(ended, config) as processes:
        await processes.report(RunState.SUCCEEDED, 20, reward=0.5, replicas=Replicas(1, 2, 1))
    left = make_run(runs / "left", config, old)
    async with launched(left, config) as processes:
        await processes.report(
            RunState.RUNNING, 7, held="no room", replicas=Replicas(1, 2, 1), devices=4
        )
    make_run(runs / "silent", config, old)
    make_run(runs / "young", config)
    damaged = make_run(runs / "damaged", config).folder
    (damaged / "context.json").write_text("{")
    (runs / "no run").mkdir()
    going = make_run(runs / "going", config, old)
    async with launched(going, config) as processes:
        await processes.take_lease()
        await processes.report(
            RunState.RUNNING, 3, replicas=Replicas(1, 2, 1), devices=4, doing="validating"
        )
        found = FoundRuns(runs, RunStores(find=read_store))
        await found.look()
    views = {run.run_id: run.view for run in found.all()}
    assert {run_id: (view.state, view.step) for run_id, view in views.items()} == {
        "ended": (RunState.SUCCEEDED, 20),
        "left": (RunState.FAILED, 7),
        "silent": (RunState.FAILED, 0),
        "young": (RunState.STARTING, 0),
        "damaged": (RunState.UNKNOWN, 0),
        "going": (RunState.RUNNING, 3),
    }
    assert views["ended"].reward == 0.5 and found.get("ended").config["run"]["name"] == "demo"
    assert found.get("silent").config == found.get("ended").config, "out of config.yaml"
    assert "launcher has ended" in views["left"].error and not views["left"].held
    assert f"train --resume {left.folder}" in views["left"].remedy
    assert views["left"].ended_at > 0
    assert "context.json: cannot be read" in views["damaged"].error
    granted = {run_id: view.replicas.granted for run_id, view in views.items()}
    assert (granted["going"], granted["left"], granted["ended"]) == (1, 0, 0)
    assert (views["going"].devices, views["left"].devices) == (4, 0)
    assert views["going"].doing == "validating"
    with pytest.raises(NotFoundError, match=f"'no run': there is none in {runs}"):
        found.get("no run")

    one = FoundRuns(going.folder, RunStores(find=read_store))
    await one.look()
    assert [run.run_id for run in one.all()] == ["going"]


async def test_only_what_changes_is_read_again_and_nothing_is_written(tmp_path: Path) -> None:
    config, runs, now = config_of(tmp_path), tmp_path / "runs", [0.0]
    ended = make_run(runs / "ended", config)
    async with launched(ended, config) as processes:
        await processes.report(RunState.SUCCEEDED, 20)
    before, opened = contents(runs), list[str]()

    async def find(url: str) -> Store | None:
        opened.append(Path(url).parent.name)
        return await read_store(url)

    found = FoundRuns(runs, RunStores(find=find), clock=lambda: now[0])
    for _ in range(3):
        await found.look()
    assert opened == ["ended"] and contents(runs) == before

    going = make_run(runs / "going", config)
    now[0] = (going.folder / "config.yaml").stat().st_mtime
    async with launched(going, config) as processes:
        await processes.take_lease()
        for step in (1, 2):
            await processes.report(RunState.RUNNING, step)
            await found.look()
            assert found.get("going").step == step
        assert processes.lease
        now[0] += 2 * LAPSE_SECONDS
        await found.look()
        await processes.store.release(processes.lease)
        now[0] += LAPSE_SECONDS - 1
        await found.look()
        assert found.get("going").state is RunState.RUNNING, "its launcher may come back"
        now[0] += 2
        await found.look()
        assert found.get("going").state is RunState.FAILED
        await processes.take_lease()
        await processes.report(RunState.RUNNING, 3)
        await found.look()
        assert found.get("going").state is RunState.RUNNING
    assert opened.count("ended") == 1
    shutil.rmtree(going.folder)
    await found.look()
    assert [run.run_id for run in found.all()] == ["ended"] and contents(runs) == before


async def test_a_store_that_does_not_answer_holds_no_other_run_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.manager.viewing.found_runs.READ_SECONDS", 0.5)
    config, runs = config_of(tmp_path), tmp_path / "runs"
    for name in ("hangs", "young"):
        make_run(runs / name, config)

    async def find(url: str) -> Store | None:
        if "hangs" in url:
            await asyncio.Event().wait()
        return await read_store(url)

    found = FoundRuns(runs, RunStores(find=find))
    await found.look()
    assert found.get("young").state is RunState.STARTING
    assert found.get("hangs").error == "its store has not answered for 0.5 s"


async def test_what_is_known_of_a_run_stays_while_its_store_cannot_be_read(tmp_path: Path) -> None:
    config, runs = config_of(tmp_path), tmp_path / "runs"
    ended = make_run(runs / "ended", config)
    async with launched(ended, config) as processes:
        await processes.report(RunState.SUCCEEDED, 20)
    found = FoundRuns(runs, RunStores(find=read_store))
    await found.look()
    store = ended.folder / "store.sqlite"
    kept = store.read_bytes()
    store.write_bytes(b"no store" * 1000)
    await found.look()
    assert found.get("ended").step == 20 and "store.sqlite: damaged" in found.get("ended").held
    store.write_bytes(kept)
    await found.look()
    assert found.get("ended").held == ""
