"""A manager's process with few descriptors, and strangers that say nothing."""

from __future__ import annotations

import asyncio
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from trimaran.wire import rpc

MAIN = "import sys; from commands.cli.main import main; sys.exit(main())"
NUM_FILES = 200
NUM_STRANGERS = 250

pytestmark = pytest.mark.e2e


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (NUM_FILES, NUM_FILES))


def test_silent_connections_shut_no_manager_off(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", MAIN, "up", "--folder", str(tmp_path / "runs")]
    with log.open("wb") as file:
        manager = subprocess.Popen(
            [*command, "--address", "127.0.0.1:0", "--http", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            preexec_fn=few_files,
        )
    try:
        assert manager.stdout
        line = next(line for line in manager.stdout if "listens" in line)
        found = re.search(r"on (\S+), HTTP on http://(\S+)", line)
        assert found
        asyncio.run(asyncio.wait_for(_besiege(*found.groups()), 60))
    finally:
        manager.terminate()
        manager.wait(30)
    assert log.stat().st_size < 20_000, log.read_text()[:2000]


async def _besiege(address: str, http: str) -> None:
    strangers = [_connect(place) for place in (http, address) for _ in range(NUM_STRANGERS)]
    try:
        for _ in range(3):
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"http://{http}/readyz", timeout=10)).status_code == 200
        while not await rpc.is_serving(address, 5.0):  # until the handshakes' time is over
            await asyncio.sleep(0.2)
    finally:
        for sock in strangers:
            sock.close()


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)
