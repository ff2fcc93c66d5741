"""Processes of real runs are killed and frozen: the run goes on by itself, and reaches the same end."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.e2e import runs
from trimaran.config import load_config
from trimaran.run.context import RunContext
from trimaran.run.folder import write_config
from trimaran.run.runs import (
    event_from_tree,
    events_stream,
    goal_key,
    replicas_key,
    run_from_tree,
    run_key,
)
from trimaran.store import entries, open_store
from trimaran.telemetry.run_files import read_json_lines

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

KINDS = ("controller", "trainer", "rollout", "reward", "weight-sync")


def events_of(folder):
    """All events of the run, and the run as it is recorded."""

    async def read():
        run = RunContext.in_folder(folder)
        store = await open_store(run.store_url)
        found = [event_from_tree(*e) async for e in entries(store, events_stream(run.run_id))]
        record = await store.get(run_key(run.run_id))
        await store.close()
        assert record
        return found, run_from_tree(record.value)

    return asyncio.run(read())


def put(folder, key, value):
    async def write():
        run = RunContext.in_folder(folder)
        store = await open_store(run.store_url)
        await store.put(key(run.run_id), value)
        await store.close()

    asyncio.run(write())


def put_replicas(folder, wanted):
    put(folder, replicas_key, {"wanted": wanted})


def put_goal(folder, goal):
    put(folder, goal_key, {"goal": goal})


def process_of(folder, kind, index=0):
    [found] = runs.processes(folder, "serve", kind, "--index", str(index))
    return found


def num_steps(runs_folder):
    folder = runs.find_run(runs_folder)
    return len(runs.rows(folder, "step")) if folder else 0


def disturb(process, runs_folder, mark, kinds, number):
    """One signal to one process of each kind, a step apart."""
    for kind in kinds:
        before = num_steps(runs_folder)
        runs.wait_for(
            lambda before=before: num_steps(runs_folder) > before,
            process,
            f"a step before {kind}'s turn",
        )
        process_of(mark, kind).send_signal(number)


def test_whatever_is_killed_comes_back_and_the_weights_are_those_of_an_undisturbed_run(
    write_run, tmp_path
):
    steps = {"steps": 8, "deterministic": True, "checkpoint_every": 3}
    path = write_run(run=steps | {"folder": str(tmp_path / "whole")})
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output

    path = write_run(run=steps | {"folder": str(tmp_path / "broken")})
    process = runs.start("train", path, run_folder_parent=tmp_path)
    disturb(process, tmp_path / "broken", tmp_path, KINDS, signal.SIGKILL)
    output = runs.finish(process)
    assert process.returncode == 0, output
    for kind in ("controller", "trainer-0", "rollout-0", "reward", "weight-sync"):
        assert f"{kind} died (killed by SIGKILL)" in output
    whole, broken = runs.only_run(tmp_path / "whole"), runs.only_run(tmp_path / "broken")
    weights = "model/model.safetensors"
    assert (whole / weights).read_bytes() == (broken / weights).read_bytes()
    assert [row["step"] for row in runs.rows(broken, "step")] == list(range(1, 9))
    events, run = events_of(broken)
    assert (run.state, run.step, run.starts) == ("succeeded", 8, 1)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert runs.survivors(tmp_path) == []


def test_whatever_is_frozen_is_killed_and_comes_back(write_run, tmp_path):
    path = write_run(run={"steps": 8})
    process = runs.start("train", path, "frozen_timeout=15", run_folder_parent=tmp_path)
    disturb(process, tmp_path / "runs", tmp_path, KINDS, signal.SIGSTOP)
    output = runs.finish(process)
    assert process.returncode == 0, output
    for kind in ("controller", "trainer-0", "rollout-0", "reward", "weight-sync"):
        assert f"{kind} is frozen: it has not answered" in output
    assert runs.survivors(tmp_path) == []


def test_a_frozen_rank_of_two_is_killed_and_all_come_back(write_run, tmp_path):
    """Its peer waits for it in a collective, and answers for its own health all the while."""
    path = write_run(run={"steps": 6}, trainer={"data_parallel": 2})
    process = runs.start("train", path, "frozen_timeout=15", run_folder_parent=tmp_path)
    folder = tmp_path / "runs"
    runs.wait_for(lambda: num_steps(folder) >= 2, process, "the second step")
    process_of(tmp_path, "trainer", 1).send_signal(signal.SIGSTOP)
    output = runs.finish(process)
    assert process.returncode == 0, output
    assert "trainer-1 is frozen: it has not answered" in output
    assert "trainer-0 is frozen" not in output
    assert "the run starts it again with controller, trainer-0" in output
    assert num_steps(folder) == 6
    assert runs.survivors(tmp_path) == []


def test_a_replica_joins_a_run_that_goes_on_and_leaves_it_again(write_run, tmp_path):
    path = write_run(run={"steps": 300, "max_lag": 1}, rollout={"max_replicas": 2})
    process = runs.start("train", path, run_folder_parent=tmp_path)
    folder = tmp_path / "runs"
    runs.wait_for(
        lambda: (run := runs.find_run(folder)) and runs.rows(run, "step"), process, "a step"
    )
    run = runs.only_run(folder)
    put_replicas(run, 2)
    runs.wait_for(lambda: "rollout-1" in made_groups(run), process, "a group of rollout-1")
    put_replicas(run, 1)
    runs.wait_for(
        lambda: not runs.processes(tmp_path, "serve", "rollout", "--index", "1"),
        process,
        "the end of rollout-1",
    )
    process.send_signal(signal.SIGINT)
    output = runs.finish(process)
    assert "rollout-1 is added to the run" in output
    assert "rollout-1: taken from the run" in output
    assert "rollout-1 died" not in output
    # Before, while it joins, the version that it takes may be replaced under it: it tries again.
    assert "replica lost" not in output.partition("rollout-1: taken from the run")[2]
    assert "rollout-1 is drained" in (run / "logs" / "weight-sync.log").read_text()
    assert "skipped" not in output
    assert runs.survivors(tmp_path) == []


def made_groups(folder):
    """Replicas that were busy, by the run's timeline."""
    rows = read_json_lines(folder / "timeline.jsonl")
    return {row["process"] for row in rows if row["activity"] == "generating"}


def test_a_launcher_without_a_display_pauses_and_goes_on_where_it_stood(write_run, tmp_path):
    folder = tmp_path / "runs" / "tiny-1"
    (folder / "logs").mkdir(parents=True)
    write_config(folder, load_config(write_run(run={"steps": 6})))
    RunContext.in_folder(folder).write()
    process = runs.start("launch", folder, run_folder_parent=tmp_path)
    runs.wait_for(lambda: runs.rows(folder, "step"), process, "a step")
    put_goal(folder, "pause")
    output = runs.finish(process)
    assert process.returncode == 0, output
    _, run = events_of(folder)
    assert (run.state, run.starts) == ("paused", 1)
    assert 1 <= run.step < 6
    assert not (folder / "model").exists()
    assert runs.survivors(tmp_path) == []

    put_goal(folder, "run")
    process = runs.start("launch", folder, run_folder_parent=tmp_path)
    output = runs.finish(process)
    assert process.returncode == 0, output
    events, run = events_of(folder)
    assert (run.state, run.step, run.starts) == ("succeeded", 6, 2)
    steps = [event.run.step for event in events if event.kind == "step"]
    assert steps == list(range(1, 7))
    assert runs.survivors(tmp_path) == []
