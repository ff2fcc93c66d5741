"""Trainer and rollout in turns on the same devices: the same weights as in separate pools, whatever dies."""

import signal

import pytest

from tests.e2e import runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
TWO = {"trainer": {"data_parallel": 2}, "rollout": {"engine": "transformers", "replicas": 2}}
"""Ranks and replicas, on two devices or, in separate pools, on four."""


def test_colocated_pools_reach_the_weights_of_separate_ones_whatever_dies_in_whose_turn(
    write_run, tmp_path
):
    steps = {"steps": 8, "deterministic": True}
    path = write_run(run=steps | {"folder": str(tmp_path / "separate")}, **TWO)
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output

    folder = tmp_path / "colocated"
    path = write_run(run=steps | {"folder": str(folder), "pools": "colocated"}, **TWO)
    process = runs.start("train", path, run_folder_parent=tmp_path)
    wait_for_turn(process, folder, 2, "trainer-0")
    trainer, replica, weight_sync = (
        one_of(tmp_path, *words)
        for words in (("trainer", "0"), ("rollout", "1"), ("weight-sync", "0"))
    )
    trainer.send_signal(signal.SIGSTOP)  # so that its turn lasts
    for dead in (replica, weight_sync):
        dead.kill()
        runs.wait_for(lambda dead=dead: not dead.is_running(), process, "its end")
    trainer.send_signal(signal.SIGCONT)
    wait_for_turn(process, folder, 4, "rollout-0")
    trainer.kill()  # the ranks' next lives wait for the devices until the next controller takes them back
    output = runs.finish(process)
    assert process.returncode == 0, output
    for name in ("rollout-1", "weight-sync", "trainer-0"):
        assert f"{name} died (killed by SIGKILL)" in output

    weights = "model/model.safetensors"
    separate, colocated = runs.only_run(tmp_path / "separate"), runs.only_run(folder)
    assert (separate / weights).read_bytes() == (colocated / weights).read_bytes()
    assert [row["step"] for row in runs.rows(colocated, "step")] == [*range(1, 9)]
    assert runs.survivors(tmp_path) == []


def test_a_replica_that_is_frozen_when_the_trainers_turn_comes_is_ended_and_the_turn_goes_on(
    write_run, tmp_path
):
    """On four devices: a replica takes two, and so waits for two ranks. Twenty steps of 0.4 s outlast what the
    launcher needs to see the death."""
    folder = tmp_path / "colocated"
    path = write_run(
        run={"steps": 20, "folder": str(folder), "pools": "colocated"},
        trainer={"tensor_parallel": 2, "data_parallel": 2},
        rollout=TWO["rollout"] | {"tensor_parallel": 2, "idle_timeout": 3},
    )
    # Else it would be noticed by its silence alone, sooner or later.
    process = runs.start("train", path, "frozen_timeout=500", run_folder_parent=tmp_path)
    wait_for_turn(process, folder, 2, "rollout-0")
    one_of(tmp_path, "rollout", "1").send_signal(signal.SIGSTOP)
    output = runs.finish(process)
    assert process.returncode == 0, output
    assert "rollout-1 does not sleep: " in output
    assert "; it is ended, and the trainer goes on" in output
    assert "rollout-1 died (killed by SIGKILL); the run starts it again" in output
    assert [row["step"] for row in runs.rows(runs.only_run(folder), "step")] == [*range(1, 21)]
    assert runs.survivors(tmp_path) == []


def one_of(tmp_path, kind, index):
    [process] = runs.processes(tmp_path, "serve", kind, "--index", index)
    return process


def wait_for_turn(process, folder, num_steps, holder):
    """After so many steps."""

    def is_turn():
        run = runs.find_run(folder)
        if not run or len(runs.rows(run, "step")) < num_steps:
            return False
        return (run / "turns/device-0").read_text() == holder

    runs.wait_for(is_turn, process, f"the turn of {holder}")
