"""The example plugin keeps the contract, as the conformance kit sees it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

GUESS = Path(__file__).parents[3] / "examples" / "environment_plugin" / "guess.py"


def wait_until_answers(host: str, port: int) -> None:
    """Raises OSError after ten seconds."""
    for left in reversed(range(100)):
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            if not left:
                raise
            time.sleep(0.1)


@pytest.mark.e2e
def test_the_example_passes_the_kit() -> None:
    server = subprocess.Popen([sys.executable, str(GUESS)], stderr=subprocess.DEVNULL)
    try:
        wait_until_answers("127.0.0.1", 8800)
        check = [sys.executable, "-m", "commands.cli", "environment", "check"]
        found = subprocess.run(
            [*check, "http://127.0.0.1:8800"], capture_output=True, text=True, timeout=120
        )
        assert found.returncode == 0, found.stdout + found.stderr
        assert "0 failed" in found.stdout
    finally:
        server.kill()
        server.wait()
