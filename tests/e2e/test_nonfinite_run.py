"""A whole run in which one step has a gradient that is not finite."""

import json

import pytest

from tests.e2e import runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

REWARD = """
def score(solution_str, ground_truth, **kwargs):
    largest = 1e38 if ground_truth == "2" else 1.0
    return largest * (len(solution_str) % 2)
"""


@pytest.mark.parametrize(
    "weight_sync", [{}, {"transport": "collective", "delta": True}, {"transport": "relay"}]
)
def test_a_step_that_is_not_finite_is_published_with_the_weights_before_it(
    write_run, tmp_path, weight_sync
):
    """The third prompt, 0 + 2, is in step 2; tokens of its version train in step 3."""
    file = tmp_path / "style.py"
    file.write_text(REWARD)
    path = write_run(
        reward={"rules": {"style": {"function": "style.py:score"}}},
        algorithm={"normalize_std": False},
        weight_sync=weight_sync,
        data={"train": "train.jsonl", "shuffle": False},
    )
    code, output = runs.train(path, "--allow", f"{file}:score", run_folder_parent=tmp_path)
    assert code == 0, output
    folder = runs.only_run(tmp_path / "runs")
    rows = runs.rows(folder, "step")
    assert [row.get("trainer/nonfinite") for row in rows] == [
        *(None, "group 2: its loss or gradient is not finite", None)
    ]
    assert "trainer/loss" not in rows[1]
    assert rows[2]["rollout/completion/lag_max"] == 0
    lines = (folder / "versions.jsonl").read_text().splitlines()
    roots = [json.loads(line)["root"] for line in lines]
    assert len(roots) == 4
    assert roots[0] != roots[1] == roots[2] != roots[3]
    assert json.loads((folder / "summary.json").read_text())["nonfinite_steps"] == 1
    assert "these updates changed nothing" in output
    assert runs.survivors(tmp_path) == []
