"""A Redis server for a measurement, as a run's ledger needs it: every write on the disk."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimaran.launch.endpoints import free_address

START_SECONDS = 10.0


@contextmanager
def redis_server(folder: Path, cores: set[int]) -> Iterator[str]:
    """Its URL. Raises RuntimeError where Redis is not installed or does not start."""
    if shutil.which("redis-server") is None:
        raise RuntimeError("redis-server is missing; install it (Debian: apt install redis-server)")
    host, _, port = free_address(set()).rpartition(":")
    command = ["taskset", "-c", ",".join(map(str, sorted(cores))), "redis-server"]
    command += ["--bind", host, "--port", port, "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always"]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait(process, host, port)
            yield f"redis://{host}:{port}"
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], host: str, port: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    ping = ["redis-cli", "-h", host, "-p", port, "ping"]
    while subprocess.run(ping, capture_output=True).stdout.strip() != b"PONG":
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("redis-server does not start; see redis.log beside its data")
        time.sleep(0.05)
