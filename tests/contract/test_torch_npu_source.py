"""torch-npu's C++, where TORCH_NPU_SOURCE names a checkout of the branch v2.10.0-26.1.0.

The wheel of 2.10.0.post4 has it compiled only; the branch says that it is 2.10.0.post6. Its text is
compared, nothing is built.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = "TORCH_NPU_SOURCE"
GROUP = "torch_npu/csrc/distributed/ProcessGroupHCCL"


Read = Callable[[str], str]


@pytest.fixture
def read() -> Read:
    """`read(path)` gives a file of the checkout, with one space wherever there is white space."""
    given = os.environ.get(SOURCE)
    if not given:
        pytest.skip(
            f"the C++ of torch-npu is in no package index; set {SOURCE} to a checkout of it"
        )
    assert (Path(given) / "version.txt").read_text(encoding="utf-8").startswith("2.10.0")
    return lambda path: re.sub(r"\s+", " ", (Path(given) / path).read_text(encoding="utf-8"))


def test_failed_work_is_complete_and_no_success(read: Read) -> None:
    """So `is_completed()` alone would pass a failed broadcast on."""
    text = read(f"{GROUP}.cpp")
    assert "WorkHCCL::isCompleted() { checkAndSetException(); return exception() ||" in text
    assert "WorkHCCL::isSuccess() const { if (exception()) {" in text


def test_error_handling_2_leaves_the_process_alive(read: Read) -> None:
    """1, the default, tears it down."""
    text = read(f"{GROUP}.hpp")
    assert "NoHandling = 0, TearDown = 1, CleanUpOnly = 2, SkipCleanUp = 3" in text
    assert 'HCCL_ASYNC_ERROR_HANDLING = "HCCL_ASYNC_ERROR_HANDLING"' in text


def test_two_variables_take_a_group_from_another_communicator(read: Read) -> None:
    options = read("torch_npu/csrc/core/npu/register/OptionsManager.cpp")
    assert 'GetBoolTypeOption("ROOTINFO_SUBCOMM_ENABLE", 0)' in options
    assert 'get_and_log_env("RANK_TABLE_FILE")' in options


def test_a_communicator_can_be_aborted_from_python(read: Read) -> None:
    bound = read("torch_npu/csrc/distributed/Init.cpp")
    assert '.def("abort_hccl_comm", &::c10d_npu::ProcessGroupHCCL::abortAndClearHcclComm)' in bound
