"""Short runs of the fault driver. The long ones are `make faults-runs`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults_runs.plants import PLANTS
from tests.redis_server import PROGRAM, WHY_SKIPPED

SECONDS = 300
needs_redis = pytest.mark.skipif(PROGRAM is None, reason=WHY_SKIPPED)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS + 20)]


def drive(*arguments: str | int | Path) -> tuple[int, str]:
    """Exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults_runs", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("store", ["sqlite", pytest.param("redis", marks=needs_redis)])
def test_runs_go_on_by_themselves_after_one_fault_after_another(store: str, tmp_path: Path):
    results = tmp_path / "results.json"
    code, output = drive("--runs", 2, "--faults", 8, "--store", store, "--results", results)
    assert code == 0, output
    [piece] = json.loads(results.read_text())["pieces"]
    assert piece["faults"] >= 12 and piece["tokens"] > 0, output


def test_every_process_that_stays_frozen_is_found():
    """One directed fault a kind: rollout, reward, weight sync, trainer, controller, launcher."""
    code, output = drive("--runs", 1, "--faults", 6, "--only", "frozen")
    assert code == 0, output
    for kind in ("rollout", "reward", "weight-sync", "trainer", "controller", "launcher"):
        assert f"frozen {kind}:" in output, output


@pytest.mark.parametrize("plant", PLANTS)
def test_the_oracle_finds_a_planted_breakage(plant: str):
    seed = (
        2 if plant in ("order", "replay", "twice") else 1
    )  # the fault must fall at the right time
    code, output = drive("--seed", seed, "--runs", 1, "--faults", 3, "--plant", plant)
    assert code == 1, output
    assert "WRONG: " in output
