"""What an Ascend host lacks is said in one line, with the remedy and status 2, before any download."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.install.indexes import Index, serving
from tests.install.machine import says_one_line
from tests.install.npu import NpuMachine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[NpuMachine]:
    with serving(Index, None) as server:
        machine = NpuMachine(tmp_path, server)
        yield machine
        assert server.asked == []
        assert not machine.env.exists()


def refusal(machine: NpuMachine, *arguments: str) -> str:
    return says_one_line(machine.install(*arguments))


@pytest.mark.parametrize("arguments", [("env",), ("env", "310p"), ("env", "a2", "more")])
def test_the_arguments(machine: NpuMachine, arguments: tuple[str, ...]) -> None:
    assert refusal(machine, *arguments) == "usage: sh deploy/npu/install.sh ENV a2|a3"


LACKING: dict[str, tuple[Callable[[NpuMachine], object], str]] = {
    "another processor": (
        lambda machine: machine.stub("uname", "case $1 in -m) echo riscv64;; *) echo Linux;; esac"),
        "needs x86_64 or aarch64 and this is riscv64: vLLM-Ascend",
    ),
    "another Python": (
        lambda machine: machine.stub_python('case "$2" in *version_info*) echo 3.10; exit;; esac'),
        "Python 3.11 or 3.12 is needed",
    ),
    "a glibc older than the wheels": (
        lambda machine: machine.stub_python('case "$2" in *libc_ver*) echo 2.5; exit;; esac'),
        "need glibc 2.34 and this system has 2.5: use Ubuntu 22.04",
    ),
    "a full disk": (
        lambda machine: machine.stub("df", f"echo header; echo / 0 0 {6 * 10**6} 0% /"),
        "8 GB of disk are needed",
    ),
    "no driver": (
        lambda machine: machine.stub("npu-smi", "exit 255"),
        "npu-smi info shows no device: install the driver",
    ),
    "no CANN": (
        lambda machine: machine.variables.pop("ASCEND_HOME_PATH"),
        "install CANN 9.1.0 and source its set_env.sh",
    ),
    "another CANN": (
        lambda machine: machine.set_cann("9.1.0.RC1"),
        "CANN 9.1.0 is needed and",
    ),
    "a CANN that does not say its version": (
        lambda machine: machine.variables.update(ASCEND_HOME_PATH="/nowhere"),
        "has no version that can be read",
    ),
    "no ATB": (
        lambda machine: machine.variables.pop("ATB_HOME_PATH"),
        "install NNAL 9.1.0 and source its atb/set_env.sh",
    ),
    "no index of Ascend's": (
        lambda machine: machine.variables.update(ASCEND_INDEX="/nowhere"),
        "Set ASCEND_INDEX to Ascend's package index, or to a folder",
    ),
    "no MindSpeed": (
        lambda machine: machine.variables.update(MINDSPEED_SOURCE=sys.prefix),
        "Set MINDSPEED_SOURCE to the folder",
    ),
    "a source of vLLM that is none": (
        lambda machine: machine.variables.update(VLLM_SOURCE="/nowhere"),
        "VLLM_SOURCE: /nowhere is neither a folder with setup.py",
    ),
}


@pytest.mark.parametrize(("prepare", "words"), LACKING.values(), ids=LACKING.keys())
def test_what_a_host_lacks(
    machine: NpuMachine, prepare: Callable[[NpuMachine], object], words: str
) -> None:
    prepare(machine)
    assert words in refusal(machine)


def test_an_image_is_built_without_a_device_and_hears_what_is_missing(machine: NpuMachine) -> None:
    machine.stub("npu-smi", "exit 255")
    for variable in ("ASCEND_HOME_PATH", "ATB_HOME_PATH", "MINDSPEED_SOURCE"):
        del machine.variables[variable]
    machine.variables["NO_DEVICE"] = "1"

    done = machine.install()
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == [
        "Missing, and needed to run"
    ] * 3
    assert "NO_DEVICE" not in done.stdout
    assert "MINDSPEED_SOURCE" in says_one_line(done)


@pytest.mark.parametrize("value", ["", "/nowhere", "/nowhere.whl"])
def test_an_a3_with_published_wheels_only(machine: NpuMachine, value: str) -> None:
    machine.variables["VLLM_ASCEND_SOURCE"] = value
    line = refusal(machine, str(machine.env), "a3")
    assert "wheels of vLLM-Ascend are for A2" in line and "VLLM_ASCEND_SOURCE" in line


def test_a_folder_that_is_no_environment(machine: NpuMachine, tmp_path: Path) -> None:
    folder = tmp_path / "something"
    folder.mkdir()
    assert f"{folder} is there and has no bin/python" in refusal(machine, str(folder), "a2")
