"""Trainer and rollout in turns on the same devices: the same weights as in separate pools, whoever dies."""

import signal

import pytest

from tests.e2e import runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_colocated_pools_reach_the_weights_of_separate_ones_whoever_dies_in_whose_turn(
    write_run, tmp_path
):
    steps = {"steps": 8, "deterministic": True}
    path = write_run(run=steps | {"folder": str(tmp_path / "separate")})
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output

    folder = tmp_path / "colocated"
    path = write_run(run=steps | {"folder": str(folder), "pools": "colocated"})
    process = runs.start("train", path, run_folder_parent=tmp_path)
    wait_for_turn(process, folder, 2, "trainer-0")
    [trainer] = runs.processes(tmp_path, "serve", "trainer")
    trainer.send_signal(signal.SIGSTOP)  # so that its turn lasts
    [replica] = runs.processes(tmp_path, "serve", "rollout")
    replica.kill()
    runs.wait_for(lambda: not replica.is_running(), process, "the replica's end")
    trainer.send_signal(signal.SIGCONT)
    wait_for_turn(process, folder, 4, "rollout-0")
    trainer.kill()  # its next life waits for the device until the next controller takes it back
    output = runs.finish(process)
    assert process.returncode == 0, output
    for name in ("rollout-0", "trainer-0"):
        assert f"{name} died (killed by SIGKILL)" in output

    weights = "model/model.safetensors"
    separate, colocated = runs.only_run(tmp_path / "separate"), runs.only_run(folder)
    assert (separate / weights).read_bytes() == (colocated / weights).read_bytes()
    assert [row["step"] for row in runs.rows(colocated, "step")] == [*range(1, 9)]
    assert runs.survivors(tmp_path) == []


def wait_for_turn(process, folder, num_steps, holder):
    """After so many steps."""

    def is_turn():
        run = runs.find_run(folder)
        if not run or len(runs.rows(run, "step")) < num_steps:
            return False
        return (run / "turns/device-0").read_text() == holder

    runs.wait_for(is_turn, process, f"the turn of {holder}")
