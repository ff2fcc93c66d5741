"""The packages' sources, once a process; a test that needs them skips where they are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contract.stack import Stack, read_stack

MINDSPEED = "MINDSPEED_SOURCE"
INSTALLED, CANDIDATE = "0.23.0", "0.30.0rc2"
"""Versions of vLLM-Ascend: the one that we install, and the newest release candidate."""
NEWEST_TORCH_NPU = "torch-npu 2.14.0"
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
                f"the published archives of {version} are not in .cache/contract;"
                " `make contract` downloads them where there is a network"
            )
        READ[version] = stack
    return READ[version]


@pytest.fixture(params=[INSTALLED, CANDIDATE])
def stack(request: pytest.FixtureRequest) -> Stack:
    return stack_of(request.param)


@pytest.fixture
def installed() -> Stack:
    return stack_of(INSTALLED)


@pytest.fixture
def candidate() -> Stack:
    return stack_of(CANDIDATE)


@pytest.fixture(params=[INSTALLED, NEWEST_TORCH_NPU])
def with_torch_npu(request: pytest.FixtureRequest) -> Stack:
    """The others of their packages may be missing."""
    return stack_of(request.param)


@pytest.fixture
def with_mindspeed(installed: Stack) -> Stack:
    if mindspeed_source() is None:
        pytest.skip(f"MindSpeed is in no package index; set {MINDSPEED} to a checkout of it")
    return installed
