"""What an Ascend host lacks is said in one line, with the remedy and status 2, before any download."""

import sys
from collections.abc import Iterator
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


def test_another_processor(machine: NpuMachine) -> None:
    machine.stub("uname", "case $1 in -m) echo riscv64;; *) echo Linux;; esac")
    assert "needs x86_64 or aarch64 and this is riscv64: vLLM-Ascend" in refusal(machine)


def test_another_python(machine: NpuMachine) -> None:
    machine.stub_python('case "$2" in *version_info*) echo 3.10; exit;; esac')
    assert "Python 3.11 or 3.12 is needed" in refusal(machine)


@pytest.mark.parametrize("version", ["2.28", "2.31", "2.5"])
def test_a_glibc_older_than_the_wheels(machine: NpuMachine, version: str) -> None:
    machine.stub_python(f'case "$2" in *libc_ver*) echo {version}; exit;; esac')
    line = refusal(machine)
    assert f"need glibc 2.34 and this system has {version}: use Ubuntu 22.04" in line


def test_a_full_disk(machine: NpuMachine) -> None:
    machine.stub("df", f"echo header; echo / 0 0 {6 * 10**6} 0% /")
    assert "8 GB of disk are needed" in refusal(machine)


def test_no_driver(machine: NpuMachine) -> None:
    machine.stub("npu-smi", "exit 255")
    line = refusal(machine)
    assert "npu-smi info shows no device: install the driver" in line
    assert "give a container its devices" in line and "NO_DEVICE=1" in line


def test_no_cann(machine: NpuMachine) -> None:
    del machine.variables["ASCEND_HOME_PATH"]
    assert "install CANN 9.1.0 and source its set_env.sh" in refusal(machine)


@pytest.mark.parametrize("version", ["9.0.0", "8.5.1", "9.1.0.RC1"])
def test_another_cann(machine: NpuMachine, version: str) -> None:
    machine.set_cann(version)
    assert f"CANN 9.1.0 is needed and {machine.cann} has {version}: install" in refusal(machine)


def test_a_cann_that_does_not_say_its_version(machine: NpuMachine, tmp_path: Path) -> None:
    machine.variables["ASCEND_HOME_PATH"] = str(tmp_path / "elsewhere")
    assert "has no version that can be read" in refusal(machine)


def test_no_atb(machine: NpuMachine) -> None:
    del machine.variables["ATB_HOME_PATH"]
    assert "install NNAL 9.1.0 and source its atb/set_env.sh" in refusal(machine)


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


@pytest.mark.parametrize("value", ["", "/nowhere"])
def test_no_index_of_ascends(machine: NpuMachine, value: str) -> None:
    machine.variables["ASCEND_INDEX"] = value
    line = refusal(machine)
    assert "Set ASCEND_INDEX to Ascend's package index, or to a folder" in line
    assert "triton-ascend 3.2.2" in line and "installation guide names the index" in line


@pytest.mark.parametrize("value", ["", "/nowhere", sys.prefix])
def test_no_mindspeed(machine: NpuMachine, value: str) -> None:
    machine.variables["MINDSPEED_SOURCE"] = value
    line = refusal(machine)
    assert "Set MINDSPEED_SOURCE to the folder" in line and "core_r0.16.0" in line


@pytest.mark.parametrize("value", ["", "/nowhere", "/nowhere.whl"])
def test_an_a3_with_published_wheels_only(machine: NpuMachine, value: str) -> None:
    machine.variables["VLLM_ASCEND_SOURCE"] = value
    line = refusal(machine, str(machine.env), "a3")
    assert "wheels of vLLM-Ascend are for A2" in line and "VLLM_ASCEND_SOURCE" in line


def test_a_source_of_vllm_that_is_none(machine: NpuMachine) -> None:
    machine.variables["VLLM_SOURCE"] = "/nowhere"
    assert "VLLM_SOURCE: /nowhere is neither a folder with setup.py" in refusal(machine)


def test_a_folder_that_is_no_environment(machine: NpuMachine, tmp_path: Path) -> None:
    folder = tmp_path / "something"
    folder.mkdir()
    assert f"{folder} is there and has no bin/python" in refusal(machine, str(folder), "a2")
