"""Programs that a run, or the scripts around it, call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from commands.doctor.finding import Finding, KnownFault, Severity
from commands.doctor.system import System
from trimaran.host.device import Kind

CSTDINT = "#include <cstdint>\n"
COMPILERS = ("g++", "clang++")

NPU_SMI = KnownFault(
    "tools/npu-smi",
    Severity.ERROR,
    "`npu-smi info` does not work ({said})",
    "without the driver, or without its folders in the container, no process finds a device",
    "docker run ... -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi -v /usr/local/dcmi:/usr/local/dcmi"
    " -v /usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64"
    " -v /usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info"
    "   # all of it: docs/ascend.md, First steps",
)
COMPILER = KnownFault(
    "tools/compiler",
    Severity.WARNING,
    "{name} does not find the C++ headers ({said})",
    "vLLM-Ascend and triton-ascend compile on the host, and stop there",
    "apt-get install -y g++ clang-15 libstdc++-12-dev   # openEuler: yum install gcc-c++ clang",
)
NO_COMPILER = KnownFault(
    "tools/no-compiler",
    Severity.WARNING,
    "there is no C++ compiler on PATH ({names})",
    "triton-ascend compiles kernels while a run starts, and building vLLM-Ascend needs one",
    "apt-get install -y g++ clang-15   # openEuler: yum install gcc-c++ clang",
)


@dataclass(frozen=True, slots=True)
class Tools:
    """Example: Tools(npu_smi="", compilers={"g++": ""})"""

    npu_smi: str
    """What it complained of; empty where it works, or no NPU is wanted."""
    compilers: dict[str, str]
    """Those that are there, and what each says of a program that includes <cstdint>."""


def read_tools(system: System, kind: Kind) -> Tools:
    if kind != "npu":
        return Tools("", {})
    answer = system.run("npu-smi", "info")
    npu_smi = "it is not there or does not answer" if answer is None else ""
    if answer is not None and answer.returncode:
        npu_smi = _last_line(answer.stderr or answer.stdout) or f"status {answer.returncode}"
    compilers: dict[str, str] = {}
    for name in COMPILERS:
        compiled = system.run(name, "-fsyntax-only", "-x", "c++", "-", given=CSTDINT)
        if compiled is not None:
            said = next((line for line in compiled.stderr.splitlines() if "cstdint" in line), "")
            compilers[name] = (said or "it fails") if compiled.returncode else ""
    return Tools(npu_smi, compilers)


def check_tools(facts: Tools, kind: Kind) -> Iterator[Finding]:
    if kind != "npu":
        return
    if facts.npu_smi:
        yield NPU_SMI.found(said=facts.npu_smi)
    if not facts.compilers:
        yield NO_COMPILER.found(names=", ".join(COMPILERS))
    for name, said in facts.compilers.items():
        if said:
            yield COMPILER.found(name=name, said=said)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.strip().splitlines()) if line), "")
