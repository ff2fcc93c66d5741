"""A real redis-server on a free port, killed and restarted as a test or a benchmark wants it; and
fixtures of it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from trimaran.run.network import LOOPBACK, split

START_SECONDS = 30.0
WHY_SKIPPED = "redis-server is not installed; Debian's package redis-server brings it"
PROGRAM = shutil.which("redis-server")
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class RedisServer:
    """Example: RedisServer(tmp_path).start().url("demo")"""

    def __init__(
        self,
        folder: Path,
        *settings: str,
        cores: Collection[int] = (),
        address: str = "127.0.0.1",
    ) -> None:
        """Without settings it loses nothing; without cores it runs on any."""
        self.folder, self.settings = folder, settings or DURABLE
        self._pinned = ("taskset", "-c", ",".join(map(str, cores))) if cores else ()
        self.address = address
        # One that no connection is given while the server is away.
        self.port = split(replace(LOOPBACK, address=address).free_address())[1]
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, prefix: str, options: str = "") -> str:
        return f"redis://{self.address}:{self.port}/0?prefix={prefix}{options}"

    def start(self) -> RedisServer:
        if PROGRAM is None:
            raise RuntimeError(WHY_SKIPPED)
        self.folder.mkdir(exist_ok=True)
        fixed = (
            "--bind",
            self.address,
            "--save",
            "",
            "--daemonize",
            "no",
            "--protected-mode",
            "no",
        )
        place = ("--port", str(self.port), "--dir", str(self.folder), "--repl-diskless-sync-delay")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._pinned, PROGRAM, *fixed, *place, "0", *self.settings],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with redis.Redis(self.address, self.port) as client:
                    client.ping()
                return self
            except redis.ConnectionError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline
            time.sleep(0.02)

    def require(self, password: str) -> None:
        """From now on; it stands in no command line."""
        with redis.Redis(self.address, self.port) as client:
            client.config_set("requirepass", password)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def truncate(self, num_bytes: int) -> None:
        """Cut off the end of the append-only file, as a torn write does. The server must be dead."""
        with self._log.open("rb+") as opened:
            opened.truncate(self._log.stat().st_size - num_bytes)

    def halve(self) -> None:
        """Cut off half of the append-only file. The server must be dead."""
        self.truncate(self._log.stat().st_size // 2)

    @property
    def _log(self) -> Path:
        (file,) = self.folder.glob("appendonlydir/*.incr.aof")
        return file


@pytest.fixture
def redis_program() -> str:
    """Skips the test where there is none."""
    if PROGRAM is None:
        pytest.skip(WHY_SKIPPED)
    return PROGRAM


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """For tests that leave it alone, each under a prefix of its own."""
    if PROGRAM is None:
        pytest.skip(WHY_SKIPPED)
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
def redis_server(redis_program: str, tmp_path: Path) -> Iterator[RedisServer]:
    """For one test that does to it what it likes."""
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()
