"""Each fault is made and found, alone, in the words that it should have; healthy hosts have none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.doctor.host_cases import ALSO, HOST_CASES
from tests.doctor.made import config, cpu_host, faults, npu_host
from tests.doctor.run_cases import RUN_CASES
from trimaran.doctor.document import CHECKS
from trimaran.doctor.examine import examine
from trimaran.doctor.finding import Severity

CASES = HOST_CASES | RUN_CASES


def test_every_fault_is_made_once() -> None:
    declared = [f"{check.name}/{fault.name}" for check in CHECKS for fault in check.faults]
    assert sorted(declared) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_found(name: str, tmp_path: Path) -> None:
    if name == "preloads/static-tls" and not shutil.which("cc"):
        pytest.skip("needs a C compiler: the fault is a library that is compiled here")
    make, words = CASES[name]
    findings = make(tmp_path)
    assert faults(findings) == {name} | ALSO.get(name, set())
    (finding, *_) = [one for one in findings if f"{one.check}/{one.fault}" == name]
    assert all(word in finding.what for word in words), finding.what
    assert finding.why and finding.mend
    assert not any(mark in f"{finding.what}{finding.why}{finding.mend}" for mark in "{}")


def test_a_healthy_host_has_none(tmp_path: Path) -> None:
    findings = examine(cpu_host(tmp_path), config(tmp_path))
    assert {one.severity for one in findings} == {Severity.FINE}, faults(findings)
    checks = {one.check for one in findings}
    assert checks == {check.name for check in CHECKS} - {"run", "store", "hosts", "links"}


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
