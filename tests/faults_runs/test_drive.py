"""Short runs of the fault driver. The long ones are `make faults-runs`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    code, output = drive("--runs", 1, "--faults", 4, "--store", store, "--results", results)
    assert code == 0, output
    [piece] = json.loads(results.read_text())["pieces"]
    assert piece["faults"] >= 3 and piece["tokens"] > 0, output


@needs_redis
def test_nothing_trains_twice_where_redis_fails_over_to_a_replica_that_lacks_the_last_writes():
    code, output = drive("--fail-over")
    assert code == 0, output
    assert "the store has gone back: it had acknowledged" in output
