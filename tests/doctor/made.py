"""Hosts that a test makes: files below a folder, fake programs, fake packages, an environment."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from commands.doctor.finding import Finding, Severity
from commands.doctor.system import System
from trimaran.config import RunConfig, parse_config

ELF = {"x86_64": 62, "aarch64": 183}
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max processes             {processes:<20} unlimited            processes
Max open files            {files:<20} 1048576              files
Max locked memory         {locked:<20} unlimited            bytes
"""
MEMINFO = """\
MemTotal:       {total} kB
MemAvailable:   {free} kB
"""
STACK = {
    "vllm-ascend": "0.23.0",
    "vllm": "0.23.0",
    "torch": "2.10.0+cpu",
    "torch-npu": "2.10.0.post4",
    "triton-ascend": "3.2.2",
    "mindspeed": "0.16.0",
    "megatron-core": "0.16.1",
    "math-verify": "0.9.0",
    "antlr4-python3-runtime": "4.13.2",
}


def cpu_host(root: Path, **variables: str) -> System:
    """A healthy one without accelerators."""
    write(root, "proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
    write(root, "proc/sys/net/ipv4/ip_local_reserved_ports", "\n")
    write(root, "proc/sys/vm/overcommit_memory", "0\n")
    write_limits(root)
    write_meminfo(root)
    write(root, "proc/self/mounts", "/dev/sda1 / ext4 rw 0 0\n")
    write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    write(root, "etc/hosts", f"127.0.0.1 localhost\n10.0.0.1 {socket.gethostname()}\n")
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    (root / "site").mkdir(exist_ok=True)
    path = str(root / "bin")
    return System({"PATH": path, **variables}, root, (str(root / "site"),), os.uname().machine)


def npu_host(root: Path, machine: str = "x86_64", **variables: str) -> System:
    """A healthy one with two dies, and a Python for which torch-npu has wheels."""
    system = replace(cpu_host(root), machine=machine, python="3.12.3")
    for node in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        write(root, f"dev/{node}", "")
    for mount in ("usr/local/dcmi/lib", "usr/local/Ascend/driver/lib64/lib"):
        write(root, mount, "")
    for part in ("driver", "firmware"):
        write(root, f"usr/local/Ascend/{part}/version.info", "Version=26.0.rc1\n")
    write(root, "etc/ascend_install.info", "")
    write(root, "cann/x86_64-linux/ascend_toolkit_install.info", "package=x\nversion=9.1.0\n")
    for name, version in STACK.items():
        write_package(root, name, version)
    for tool in ("npu-smi", "g++", "clang++"):
        write_tool(root, tool, "exit 0")
    jemalloc = write_library(root, "lib/libjemalloc.so.2", machine)
    write_limits(root, files="65536")
    given = {
        "LD_PRELOAD": jemalloc,
        "ASCEND_HOME_PATH": str(root / "cann"),
        "ATB_HOME_PATH": "/usr/local/Ascend/nnal/atb",
        "HCCL_HOST_SOCKET_PORT_RANGE": "auto",
    }
    return replace(system, variables={**system.variables, **given, **variables})


def without(system: System, *names: str) -> System:
    """The same without some variables."""
    left = {name: value for name, value in system.variables.items() if name not in names}
    return replace(system, variables=left)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_tool(root: Path, name: str, script: str) -> None:
    write(root, f"bin/{name}", f"#!/bin/sh\n{script}\n")
    (root / "bin" / name).chmod(0o755)


def write_package(root: Path, name: str, version: str) -> None:
    folder = f"site/{name.replace('-', '_')}-0.dist-info"
    write(root, f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def write_library(root: Path, name: str, machine: str) -> str:
    """Its first bytes are those of a library; no more."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 3, ELF[machine]))
    return str(path)


def write_limits(
    root: Path, files: str = "1024", processes: str = "unlimited", locked: str = "unlimited"
) -> None:
    text = LIMITS.format(files=files, processes=processes, locked=locked)
    write(root, "proc/self/limits", text)


def write_meminfo(root: Path, total: int = 64 << 20, free: int = 60 << 20) -> None:
    """kB."""
    write(root, "proc/meminfo", MEMINFO.format(total=total, free=free))


def config(root: Path, size: int = 1000, **sections: Mapping[str, object]) -> RunConfig:
    """Of a run whose model has so many bytes of weights; sparse, so they take no room."""
    (root / "model").mkdir(exist_ok=True)
    with (root / "model/model.safetensors").open("wb") as file:
        file.truncate(size)
    tree: dict[str, object] = {
        "model": {"path": str(root / "model")},
        "data": {"train": str(root / "train.jsonl")},
        "reward": {"rules": {"gsm8k": 1.0}, "workers": 1, "memory_mib": 1024},
        "run": {"folder": str(root / "runs")},
    }
    for name, section in sections.items():
        known = tree.get(name, {})
        assert isinstance(known, dict)
        tree[name] = {**known, **section}
    return parse_config(tree)


def faults(findings: list[Finding]) -> set[str]:
    """check/fault of those that are not fine."""
    return {f"{one.check}/{one.fault}" for one in findings if one.severity is not Severity.FINE}
