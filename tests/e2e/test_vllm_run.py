"""The same with vLLM: two replicas, one killed in mid-run; and a resumed run that replays."""

import json

import pytest

from tests.e2e import runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

VLLM = {"engine": "vllm", "replicas": 2, "kv_cache_gib": 0.05}


def test_a_killed_replica_does_not_stop_the_run(write_run, tmp_path):
    path = write_run(run={"steps": 12, "max_lag": 1}, rollout=VLLM, validation={"every": 100})
    process = runs.start("train", path, run_folder_parent=tmp_path)
    folder = tmp_path / "runs"
    runs.wait_for(
        lambda: (run := runs.only_run(folder)) and len(runs.rows(run, "step")) >= 2,
        process,
        "two steps",
    )
    (replica,) = [
        found
        for found in runs.processes(tmp_path, "serve", "rollout")
        if found.cmdline()[found.cmdline().index("--index") + 1] == "1"
    ]
    replica.kill()
    output = runs.finish(process)
    assert process.returncode == 0, output
    run = runs.only_run(folder)
    assert json.loads((run / "summary.json").read_text())["steps"] == 12
    assert "rollout-1" in output
    assert runs.survivors(tmp_path) == []


def test_a_resumed_vllm_run_replays_to_the_recorded_roots(write_run, tmp_path):
    """Its replica has two ranks, which load from one shadow."""
    path = write_run(
        run={"steps": 6, "deterministic": True, "checkpoint_every": 2},
        rollout=VLLM | {"replicas": 1, "tensor_parallel": 2},
        validation={"every": 100},
    )
    process = runs.start("train", path, run_folder_parent=tmp_path)
    folder = tmp_path / "runs"
    runs.wait_for(
        lambda: (run := runs.only_run(folder)) and len(runs.rows(run, "step")) >= 3,
        process,
        "three steps",
    )
    runs.kill_tree(process)
    code, output = runs.train("--resume", runs.only_run(folder), run_folder_parent=tmp_path)
    assert code == 0, output
    steps = {row["step"] for row in runs.rows(runs.only_run(folder), "step")}
    assert steps == set(range(1, 7))
    assert runs.survivors(tmp_path) == []
