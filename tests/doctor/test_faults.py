"""Each fault is made and found, alone, in the words that it should have; healthy hosts have none."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

from commands import doctor
from commands.doctor.examine import examine
from commands.doctor.finding import KnownFault, Severity
from tests.doctor.host_cases import HOST_CASES
from tests.doctor.made import config, cpu_host, faults, npu_host
from tests.doctor.run_cases import RUN_CASES

CASES = HOST_CASES | RUN_CASES
DOCUMENT = Path(doctor.__file__).parents[2] / "docs" / "doctor.md"


def test_every_fault_is_made_once_and_documented() -> None:
    found = walk_packages(doctor.__path__, f"{doctor.__name__}.")
    modules = [import_module(module.name) for module in found]
    faults = {id(v): v for m in modules for v in vars(m).values() if isinstance(v, KnownFault)}
    names = [fault.name for fault in faults.values()]
    assert sorted(names) == sorted(CASES)
    rows = re.findall(r"(?m)^\| `([a-z]+/[a-z-]+)` \| (error|warning) \|", DOCUMENT.read_text())
    assert sorted(rows) == sorted((fault.name, str(fault.severity)) for fault in faults.values())


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_found(name: str, tmp_path: Path) -> None:
    if name == "preloads/static-tls" and not shutil.which("cc"):
        pytest.skip("needs a C compiler: the fault is a library that is compiled here")
    make, words = CASES[name]
    findings = make(tmp_path)
    assert faults(findings) == {name}
    (finding, *_) = [one for one in findings if f"{one.check}/{one.fault}" == name]
    assert all(word in finding.what for word in words), finding.what
    assert finding.why and finding.fix
    assert not any(mark in f"{finding.what}{finding.why}{finding.fix}" for mark in "{}")


def test_a_healthy_host_has_none(tmp_path: Path) -> None:
    findings = examine(cpu_host(tmp_path), config(tmp_path))
    assert {one.severity for one in findings} == {Severity.FINE}, faults(findings)


def test_a_healthy_host_with_npus_has_none(tmp_path: Path) -> None:
    findings = examine(npu_host(tmp_path), None)
    assert {one.severity for one in findings} == {Severity.FINE}, faults(findings)


def test_before_a_run_no_program_is_called_and_nothing_written(tmp_path: Path) -> None:
    system = npu_host(tmp_path)
    (tmp_path / "bin/npu-smi").write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    findings = examine(system, config(tmp_path), is_start=True)
    assert not {one.check for one in findings} & {"tools", "preloads", "disks"}
    assert not (tmp_path / "called").exists()
    assert not (tmp_path / "runs").exists()
