from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trimaran.store.redis_server import PROGRAM, WHY_SKIPPED, RedisServer


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """For tests that leave it alone, each under a prefix of its own."""
    if PROGRAM is None:
        pytest.skip(WHY_SKIPPED)
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """For one test that does to it what it likes."""
    if PROGRAM is None:
        pytest.skip(WHY_SKIPPED)
    server = RedisServer(tmp_path / "redis").start()
    yield server
    server.kill()


@pytest.fixture
def redis_program() -> str:
    """Skips the test where there is none."""
    if PROGRAM is None:
        pytest.skip(WHY_SKIPPED)
    return PROGRAM
