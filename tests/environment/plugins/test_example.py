"""The example plugin keeps the contract, as the conformance kit sees it."""

from __future__ import annotations

import socket
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
        while not is_up("127.0.0.1", 8800):
            assert server.poll() is None
            time.sleep(0.1)
        check = [sys.executable, "-m", "commands.cli", "environment", "check"]
        found = subprocess.run([*check, "http://127.0.0.1:8800"], capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
        assert "0 failed" in found.stdout
    finally:
        server.kill()
        server.wait()


def is_up(host: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((host, port)) == 0
