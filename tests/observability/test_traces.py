"""A real run, its traces in a real collector, and its logs as JSON lines."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import runs
from tests.e2e.conftest import tiny_model, write_run
from tests.observability.collector import (
    AGENT,
    HAS_SDK,
    WHY_SKIPPED,
    Collected,
    collector,
    wait_for_last,
)
from trimaran.telemetry.run_files import LOG_VARIABLE
from trimaran.telemetry.tracing import ENDPOINTS, HEADERS

__all__ = ["tiny_model", "write_run"]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
    pytest.mark.skipif(AGENT is None or not HAS_SDK, reason=WHY_SKIPPED),
]
STEPS, GROUPS_PER_STEP = 2, 2
SHARED = "WeightSyncService/ListProofs"
"""Asked once for several groups, by the first of them."""
COLLECTORS_TOKEN = "token-of-the-collector"


def test_a_group_is_one_trace_and_its_log_lines_are_found_by_its_number(
    write_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(run={"steps": STEPS, "groups_per_step": GROUPS_PER_STEP})
    monkeypatch.setenv(LOG_VARIABLE, "json")
    monkeypatch.setenv(HEADERS[1], f"authorization={COLLECTORS_TOKEN}")
    with collector(tmp_path / "collector") as collected:
        monkeypatch.setenv(ENDPOINTS[1], collected.endpoint)
        code, output = runs.train(path, run_folder_parent=tmp_path)
        assert code == 0, output
        folder = runs.only_run(tmp_path / "runs")
        wait_for_last(collected, f"group {STEPS * GROUPS_PER_STEP - 1}")
        for number in range(STEPS * GROUPS_PER_STEP):
            see_group(collected, folder.name, number)
        see_steps(collected)
    lines = log_lines(folder)
    for number in range(STEPS * GROUPS_PER_STEP):
        see_lines(lines, folder.name, number)
    reported = "".join(path.read_text() for path in (folder / "logs").iterdir())
    assert COLLECTORS_TOKEN not in reported + output


def see_group(collected: Collected, run_id: str, number: int) -> None:
    from trimaran.telemetry.otel import group_ids

    trace, root = group_ids(run_id, number)
    spans = {span.name: span for span in collected.of(trace)}
    parents = {
        f"group {number}": None,
        **dict.fromkeys(("generate", "score", "wait", "train", "publish"), f"group {number}"),
        **{"attempt": "generate", "RolloutService/Generate": "attempt"},
        "RewardService/ScoreGroup": "score",
    }
    assert set(spans) - {SHARED} == set(parents)
    assert spans[f"group {number}"].span == f"{root:016x}"
    for name, parent in parents.items():
        assert spans[name].parent == (spans[parent].span if parent else ""), name
        assert spans[name].attributes["trimaran.group"] == number, name
    processes = {name: span.process for name, span in spans.items()}
    assert processes["RolloutService/Generate"] == "rollout-0"
    assert processes["RewardService/ScoreGroup"] == "reward"
    assert processes["train"] == "trainer-0"
    order = [spans[name] for name in ("generate", "score", "wait", "train", "publish")]
    assert all(a.begin <= b.begin and a.begin <= a.end for a, b in pairwise(order))
    whole = spans[f"group {number}"]
    assert whole.begin <= order[0].end and order[-1].end <= whole.end
    assert whole.attributes["trimaran.outcome"] == "committed"
    attempt = spans["attempt"].attributes
    assert (attempt["trimaran.attempt"], attempt["trimaran.replica"]) == (1, "rollout-0")
    made = spans["RolloutService/Generate"].attributes
    assert made["trimaran.version"].startswith("0.") and made["trimaran.attempt"] == 1
    [step] = [span for span in collected.named("step") if span.trace in spans["publish"].links]
    assert step.attributes["trimaran.step"] == number // GROUPS_PER_STEP + 1
    assert spans["train"].links == (step.trace,)


def see_steps(collected: Collected) -> None:
    steps = collected.named("step")
    assert len(steps) == STEPS
    for step in steps:
        within = {(s.name, s.process) for s in collected.spans if s.trace == step.trace}
        assert within >= {
            ("WeightSyncService/PublishVersion", "weight-sync"),
            ("RolloutService/StageWeights", "rollout-0"),
            ("RolloutService/CommitWeights", "rollout-0"),
        }
        trained = {name for name, process in within if process == "trainer-0"}
        assert trained & {"TrainerService/Train", "TrainerService/TrainAhead"}
        assert len(step.links) == GROUPS_PER_STEP


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
