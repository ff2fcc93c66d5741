"""The example plugin keeps the contract, as the conformance kit sees it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

GUESS = Path(__file__).parents[3] / "examples" / "environment_plugin" / "guess.py"


@pytest.mark.e2e
def test_the_example_passes_the_kit() -> None:
    server = subprocess.Popen([sys.executable, str(GUESS)], stderr=subprocess.DEVNULL)
    try:
        check = [sys.executable, "-m", "commands.cli", "environment", "check"]
        for _ in range(20):
            found = subprocess.run(
                [*check, "http://127.0.0.1:8800"], capture_output=True, text=True, timeout=120
            )
            if "cannot connect" not in found.stdout:
                break
            time.sleep(0.5)
        assert found.returncode == 0, found.stdout + found.stderr
        assert "0 failed" in found.stdout
    finally:
        server.kill()
        server.wait()
