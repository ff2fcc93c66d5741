"""Trainer and rollout in turns on the same devices: the same weights as in separate pools, whoever dies."""

import signal

import pytest

from tests.e2e import runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_colocated_pools_reach_the_weights_of_separate_ones_and_a_replica_may_die_asleep(
    write_run, tmp_path
):
    steps = {"steps": 5, "deterministic": True}
    path = write_run(run=steps | {"folder": str(tmp_path / "separate")})
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output

    folder = tmp_path / "colocated"
    path = write_run(run=steps | {"folder": str(folder), "pools": "colocated"})
    process = runs.start("train", path, run_folder_parent=tmp_path)
    [trainer] = wait_until_it_trains(process, folder, tmp_path)
    trainer.send_signal(signal.SIGSTOP)  # so that its turn lasts
    [replica] = runs.processes(tmp_path, "serve", "rollout")
    replica.kill()
    runs.wait_for(lambda: not replica.is_running(), process, "the replica's end")
    trainer.send_signal(signal.SIGCONT)
    output = runs.finish(process)
    assert process.returncode == 0, output
    assert "rollout-0 died (killed by SIGKILL)" in output

    weights = "model/model.safetensors"
    separate, colocated = runs.only_run(tmp_path / "separate"), runs.only_run(folder)
    assert (separate / weights).read_bytes() == (colocated / weights).read_bytes()
    assert [row["step"] for row in runs.rows(colocated, "step")] == [1, 2, 3, 4, 5]
    assert runs.survivors(tmp_path) == []


def wait_until_it_trains(process, folder, mark):
    """The trainer's process, in its turn after two steps."""

    def trains():
        run = runs.find_run(folder)
        if not run or len(runs.rows(run, "step")) < 2:
            return False
        return (run / "turns/device-0").read_text() == "trainer-0"

    runs.wait_for(trains, process, "the trainer's turn")
    return runs.processes(mark, "serve", "trainer")
