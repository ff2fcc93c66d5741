"""The suite of each test; no test fails because the machine is slow, or because it has a GPU."""

import asyncio
import inspect
import logging
import os
from collections.abc import Generator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings

from tests.bucket_server import bucket
from tests.redis_server import redis_program, redis_server, shared_redis
from tests.suite import E2E_FOLDERS, PART_NAMES, place_of, suite_of
from trimaran.host.device import VISIBLE_DEVICES, find_visible
from trimaran.host.machine import read_machine
from trimaran.telemetry import scope
from trimaran.telemetry.run_files import LIVES

__all__ = ["bucket", "redis_program", "redis_server", "shared_redis"]

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

GPUS = VISIBLE_DEVICES["cuda"]
SHELL = os.environ.setdefault("TRIMARAN_TEST_GPUS", os.environ.get(GPUS, "all"))
"""What the shell said: a worker of pytest-xdist finds the variable emptied already."""
os.environ[GPUS] = ""
"""Tests, and what they start, compute on the CPU, except those that take the fixture `gpu`."""


LOGGERS = tuple(map(logging.getLogger, ("", "trimaran", "weights", "services", "commands", LIVES)))


@pytest.fixture(autouse=True)
def logs_as_before(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """What `setup_logging` sets, it sets for a process, and the next test is in the same one."""
    levels, handlers = [logger.level for logger in LOGGERS], logging.root.handlers[:]
    monkeypatch.setattr(scope, "process", replace(scope.process))
    yield
    for logger, level in zip(LOGGERS, levels, strict=True):
        logger.setLevel(level)
    logging.root.handlers[:] = handlers
    logging.captureWarnings(False)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs that the shell shows."""
    if SHELL == "all":
        monkeypatch.delenv(GPUS)
    else:
        monkeypatch.setenv(GPUS, SHELL)
    if not find_visible("cuda", read_machine(os.environ)):
        pytest.skip("needs an NVIDIA GPU and a torch with CUDA")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_configure(config: pytest.Config) -> None:
    for name in ("core", *PART_NAMES):
        config.addinivalue_line("markers", f"{name}: e2e, by the table in tests/suite.py")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(E2E_FOLDERS):
            item.add_marker(pytest.mark.e2e)
        suite = suite_of(item.nodeid, item.get_closest_marker("e2e") is not None)
        if suite != "unit":
            item.add_marker(suite)
    items.sort(key=lambda item: place_of(item.nodeid))
