"""Frozen processes are found, and planted breakages too. `make faults-runs` runs it; five minutes."""

from __future__ import annotations

import pytest

from tests.faults_runs.plants import PLANTS
from tests.faults_runs.test_drive import SECONDS, drive

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS + 20)]


def test_every_process_that_stays_frozen_is_found():
    """One directed fault a kind: rollout, reward, weight sync, trainer, controller, launcher, manager."""
    code, output = drive("--runs", 1, "--faults", 7, "--only", "frozen")
    assert code == 0, output
    for kind in (
        "rollout",
        "reward",
        "weight-sync",
        "trainer",
        "controller",
        "launcher",
        "manager",
    ):
        assert f"frozen {kind}:" in output, output


@pytest.mark.parametrize("plant", PLANTS)
def test_the_oracle_finds_a_planted_breakage(plant: str):
    seed = (
        2 if plant in ("order", "replay", "twice") else 1
    )  # the fault must fall at the right time
    code, output = drive("--seed", seed, "--runs", 1, "--faults", 3, "--plant", plant)
    assert code == 1, output
    assert "WRONG: " in output
