"""The packages' sources, once a process; a test that needs them skips where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.archives import STACKS
from tests.contract.stack import Stack, read_stack

MINDSPEED = "MINDSPEED_SOURCE"
READ: dict[str, Stack] = {}


def mindspeed_source() -> Path | None:
    """Raises FileNotFoundError when what is given is no checkout of it."""
    given = os.environ.get(MINDSPEED)
    if not given:
        return None
    if not (Path(given) / "mindspeed" / "megatron_adaptor.py").is_file():
        raise FileNotFoundError(f"{MINDSPEED}={given}: holds no mindspeed/megatron_adaptor.py")
    return Path(given)


def stack_of(version: str) -> Stack:
    if version not in READ:
        stack = read_stack(version, mindspeed_source())
        if stack is None:
            pytest.skip(
                f"the published archives of vLLM-Ascend {version} are not in .cache/contract;"
                " `make contract` downloads them where there is a network"
            )
        READ[version] = stack
    return READ[version]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much was checked; only of what this process read itself."""
    for version, stack in READ.items():
        number = len(stack.facts)
        terminalreporter.write_line(
            f"vLLM-Ascend {version}: {number} imports, attributes and calls of ours are checked"
        )


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> Stack:
    return stack_of(request.param)


@pytest.fixture
def installed() -> Stack:
    """The version that we install."""
    return stack_of("0.23.0")


@pytest.fixture
def candidate() -> Stack:
    """The newest release candidate."""
    return stack_of("0.30.0rc2")


@pytest.fixture
def with_mindspeed(installed: Stack) -> Stack:
    if mindspeed_source() is None:
        pytest.skip(f"MindSpeed is in no package index; set {MINDSPEED} to a checkout of it")
    return installed
