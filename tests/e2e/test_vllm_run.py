"""The same with vLLM: replicas that are killed or freeze in mid-run; and a resumed run that replays."""

import json
import signal

import pytest

from tests.e2e import runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

VLLM = {"engine": "vllm", "replicas": 2, "kv_cache_gib": 0.05}


def test_a_killed_replica_does_not_stop_the_run(write_run, tmp_path):
    steps = {"steps": 12, "max_lag": 1, "proof": "sampled"}
    path = write_run(run=steps, rollout=VLLM, validation={"every": 100})
    run, output = finished_without_replica_1(path, tmp_path)
    assert json.loads((run / "summary.json").read_text())["steps"] == 12
    assert "rollout-1" in output
    assert levels_of(run) <= {"sampled", "loaded"}
    assert runs.survivors(tmp_path) == []


def finished_without_replica_1(path, tmp_path):
    """The run whose rollout-1 is killed after two steps, and what it printed."""
    process = runs.start("train", path, run_folder_parent=tmp_path)
    folder = tmp_path / "runs"
    runs.wait_for(
        lambda: (run := runs.find_run(folder)) and len(runs.rows(run, "step")) >= 2,
        process,
        "two steps",
    )
    replica_1(tmp_path).kill()
    output = runs.finish(process)
    assert process.returncode == 0, output
    run = runs.only_run(folder)
    return run, output


def levels_of(run):
    """Of the proofs of all tokens that the run has trained."""
    name = "weight_sync/proof/tokens/"
    return {
        key.removeprefix(name)
        for row in runs.rows(run, "step")
        for key, tokens in row.items()
        if key.startswith(name) and tokens
    }


def replica_1(tmp_path):
    """Its process; the engine's core is a child of it, under another name."""
    (replica,) = [
        found
        for found in runs.processes(tmp_path, "serve", "rollout")
        if found.cmdline()[found.cmdline().index("--index") + 1] == "1"
    ]
    return replica


def test_a_replica_whose_core_freezes_or_dies_comes_back_by_itself(write_run, tmp_path, request):
    path = write_run(
        run={"steps": 10_000, "max_lag": 1, "checkpoint_every": 1000},
        rollout=VLLM,
        weight_sync={"stage_timeout": 10, "commit_timeout": 6},
        validation={"every": 10_000},
    )
    # Its loads shall end it here, not its silence (tests/rollout/test_vllm_pulse.py).
    process = runs.start("train", path, "frozen_timeout=600", run_folder_parent=tmp_path)
    request.addfinalizer(process.kill)
    lines = runs.listen(process)
    folder = tmp_path / "runs"

    def times(text: str, service: str = "weight-sync") -> int:
        run = runs.find_run(folder)
        log = run / "logs" / f"{service}.log" if run else None
        return log.read_text().count(text) if log and log.exists() else 0

    def returns() -> int:
        """Proven by a publication or by a catch-up, whichever met it first."""
        return times("replica back: rollout-1", "controller")

    def wait_until_back(after: int) -> None:
        runs.wait_for(lambda: returns() > after, process, "rollout-1 to be proven again")

    runs.wait_for(lambda: times("rollout-1 holds version"), process, "a proven rollout-1")
    first = replica_1(tmp_path)
    (core,) = first.children()

    core.suspend()
    runs.wait_for(lambda: times("rollout-1 is not routable"), process, "a commit that failed")
    seen = returns()
    core.resume()
    wait_until_back(seen)
    assert first.is_running(), "what only stood still need not be started again"

    seen = returns()
    core.suspend()
    runs.wait_for(lambda: not first.is_running(), process, "the end of the replica")
    assert times("rollout-1 lives but cannot load weights", "rollout-1")
    wait_until_back(seen)

    seen = returns()
    (core,) = replica_1(tmp_path).children()
    core.kill()
    wait_until_back(seen)

    process.send_signal(signal.SIGINT)
    process.wait(runs.TIMEOUT_SECONDS)
    assert sum("rollout-1 died (exit code 75)" in line for line in lines) == 2, lines
    assert runs.survivors(tmp_path) == []


def test_a_resumed_vllm_run_replays_to_the_recorded_roots(write_run, tmp_path):
    """Its replica has two ranks, which load from one shadow, and nothing trains before all that they have
    loaded is read back."""
    path = write_run(
        run={"steps": 6, "deterministic": True, "checkpoint_every": 2, "proof": "loaded"},
        rollout=VLLM | {"replicas": 1, "tensor_parallel": 2},
        validation={"every": 100},
    )
    run = runs.train_killed_and_resumed(path, tmp_path / "runs", tmp_path)
    steps = {row["step"] for row in runs.rows(run, "step")}
    assert steps == set(range(1, 7))
    assert levels_of(run) == {"loaded"}
    assert runs.survivors(tmp_path) == []


def test_adapters_alone_are_published_proven_and_computed_with(write_run, tmp_path):
    """A replica that is killed gets the frozen model and the newest adapters again."""
    path = write_run(
        run={"steps": 6, "proof": "loaded"},
        trainer={"lora": {"rank": 8, "alpha": 12.0, "merged": False}, "learning_rate": 1e-2},
        rollout=VLLM,
        weight_sync={"transport": "relay"},
        # A random model fulfils this now and then.
        reward={
            "rules": {"regular_expression": {"weight": 1.0, "options": {"pattern": "[0-9].?[0-9]"}}}
        },
        validation={"every": 100},
    )
    run, _ = finished_without_replica_1(path, tmp_path)
    assert levels_of(run) == {"loaded"}
    rows = runs.rows(run, "step")
    assert len(rows) == 6
    differences = [row.get("trainer/computed/logprob_diff/mean") for row in rows]
    assert max(filter(None, differences)) < 1e-4
    shares = [row["weight_sync/delta/share"] for row in rows if "weight_sync/delta/share" in row]
    assert shares and max(shares) < 0.5, "the frozen model was sent again"
    assert runs.survivors(tmp_path) == []
