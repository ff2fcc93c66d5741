"""What is e2e by its folder; and no test fails because the machine is slow."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.redis_server import redis_program, redis_server, shared_redis

__all__ = ["redis_program", "redis_server", "shared_redis"]

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

TESTS = Path(__file__).parent
E2E_FOLDERS = ("e2e", "faults", "install", "launch", "mutations")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in E2E_FOLDERS:
            item.add_marker(pytest.mark.e2e)
