"""A real run and its logs as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import runs
from tests.e2e.conftest import tiny_model, write_run
from trimaran.telemetry.run_files import LOG_VARIABLE

__all__ = ["tiny_model", "write_run"]

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
STEPS, GROUPS_PER_STEP = 2, 2
SHARED = "WeightSyncService/ListProofs"
"""Asked once for several groups, by the first of them."""


def test_the_log_lines_of_a_group_are_found_by_its_number(
    write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(run={"steps": STEPS, "groups_per_step": GROUPS_PER_STEP})
    monkeypatch.setenv(LOG_VARIABLE, "json")
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output
    folder = runs.only_run(tmp_path / "runs")
    lines = log_lines(folder)
    for number in range(STEPS * GROUPS_PER_STEP):
        see_lines(lines, folder.name, number)


def log_lines(folder: Path) -> list[dict[str, Any]]:
    """Of every process; a library's own lines are no JSON."""
    lines = "\n".join(path.read_text() for path in (folder / "logs").glob("*.log")).splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def see_lines(lines: list[dict[str, Any]], run_id: str, number: int) -> None:
    found = [line for line in lines if line.get("group") == number]
    reported = {(line["process"], line["message"].split(" after ")[0]) for line in found}
    reported -= {("weight-sync", f"{SHARED}: OK")}
    step = number // GROUPS_PER_STEP + 1
    assert reported == {
        *{("controller", "issued, attempt 1"), ("controller", "scored")},
        *{("controller", f"consumed by step {step}"), ("reward", "RewardService/ScoreGroup: OK")},
        ("rollout-0", "RolloutService/Generate: OK"),
    }
    assert {line["run"] for line in found} == {run_id}
    trained = [
        line
        for line in lines
        if line.get("step") == step and "TrainerService/Train" in line["message"]
    ]
    assert {line["process"] for line in trained} == {"trainer-0"}
