"""A vision-language model through the whole house: dataset, vLLM, reward, trainer, weight sync."""

import json

import pytest

from tests.e2e import colours, runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_three_steps_with_images_agree_from_end_to_end(tmp_path):
    path = colours.write_task(
        tmp_path,
        run={"steps": 3, "groups_per_step": 4},
        rollout={"group_size": 4, "max_tokens": 8},
        weight_sync={"sample_share": 1.0},
    )
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output
    folder = runs.only_run(tmp_path / "runs")
    rows = runs.rows(folder, "step")
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["trainer/computed/logprob_diff/mean"] < 1e-4
    # The tower's tensors are among them.
    assert rows[-1]["weight_sync/proof/share"] == 1
    assert json.loads((folder / "summary.json").read_text())["skipped"] == 0
    assert runs.survivors(tmp_path) == []


@pytest.mark.thorough
def test_a_policy_learns_to_look_at_the_image(tmp_path):
    path = colours.write_task(tmp_path)
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output
    folder = runs.only_run(tmp_path / "runs")
    before, _ = colours.accuracies(folder, 0)
    after, exchanged = colours.accuracies(folder, colours.STEPS)
    assert before <= 0.3
    assert after >= 0.9
    assert exchanged <= 0.4
