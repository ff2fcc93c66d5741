"""A short run of the fault driver. The long ones are `make faults-weights`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.faults.faults import CASES
from tests.faults.house import STAND_IN_SETTINGS

KINDS = {case.kind for case in CASES if any(map(case.fits, STAND_IN_SETTINGS))}
SECONDS = 600  # it takes two minutes, and took more than four beside other work


@pytest.mark.e2e
@pytest.mark.timeout(SECONDS + 20)
def test_the_house_heals_by_itself_from_one_fault_after_another() -> None:
    command = [sys.executable, "-m", "tests.faults.drive", "--seed", "1", "--json"]
    run = subprocess.run(
        [*command, "--count", str(len(KINDS))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert run.returncode == 0, run.stdout
    figures = json.loads(run.stdout.splitlines()[-1])
    assert set(figures["kinds"]) == KINDS, run.stdout
    assert figures["trained"] > 0
