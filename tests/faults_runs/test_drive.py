"""Short runs of the fault driver. The long ones are `make faults-runs`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.redis_server import PROGRAM, WHY_SKIPPED

SECONDS = 300
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(SECONDS + 20)]


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_runs_go_on_by_themselves_after_one_fault_after_another(store: str, tmp_path: Path) -> None:
    if store == "redis" and PROGRAM is None:
        pytest.skip(WHY_SKIPPED)
    results = tmp_path / "results.json"
    words = ("--runs", "1", "--faults", "4", "--store", store, "--results", str(results))
    command = [sys.executable, "-m", "tests.faults_runs", *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout
    [piece] = json.loads(results.read_text())["pieces"]
    assert piece["faults"] >= 3 and piece["tokens"] > 0, done.stdout
