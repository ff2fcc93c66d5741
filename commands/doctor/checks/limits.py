"""What the system lets a process have: files, threads, locked and shared memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from commands.doctor.finding import Finding, KnownFault, Severity
from commands.doctor.system import System
from trimaran.config import RunConfig
from trimaran.host.device import Kind

MIB, GIB = 1 << 20, 1 << 30
THP = "sys/kernel/mm/transparent_hugepage/enabled"
FILES_BASE, FILES_EACH = 512, 8
"""Open files of one process: its own, and its connections to each other process."""
FILES_ON_NPU = 32768
"""What the launch scripts of MindSpeed-RL set."""
THREADS_EACH = 256
"""gRPC, torch and vLLM start some per core; a replica on 64 cores has about so many."""
SHARED_BASE = 32 * MIB
SHARED_QUEUE = 256 * MIB
"""A replica of several workers: vLLM's queue has 10 slots of 24 MiB (shm_broadcast.py, MessageQueue)."""
SHARED_RANK = 64 * MIB
"""NCCL's and HCCL's buffers between ranks of one host."""

NOFILE = KnownFault(
    "limits/nofile",
    Severity.WARNING,
    "a process may have {has} files open, and this run wants {wants}",
    "each connection and each mapped file is one; the first process that has no more ends with an"
    " error in a place that has nothing to do with it",
    "ulimit -n {wants}   # docker run --ulimit nofile={wants}:{wants}",
)
MEMLOCK = KnownFault(
    "limits/memlock",
    Severity.WARNING,
    "a process may lock {has} of memory, and this host has InfiniBand or RoCE ({adapters})",
    "RDMA registers its buffers as locked memory; collectives fail or fall back to TCP without it",
    "ulimit -l unlimited   # docker run --ulimit memlock=-1",
)
NPROC = KnownFault(
    "limits/nproc",
    Severity.WARNING,
    "this user, or this container, may have {has} processes and threads; this run wants {wants}",
    "a thread that cannot be started ends its process",
    "ulimit -u {wants}   # docker run --pids-limit {wants}",
)
SHARED = KnownFault(
    "limits/shared-memory",
    Severity.WARNING,
    "/dev/shm has room for {has}, and this run wants {wants}",
    "vLLM's workers and collectives of one host meet there; Docker gives a container 64 MiB",
    "mount -o remount,size=16G /dev/shm   # docker run --shm-size=16g; Kubernetes: an emptyDir with"
    " medium: Memory",
)
NO_THP = KnownFault(
    "limits/no-huge-pages",
    Severity.WARNING,
    "transparent huge pages are off",
    "training on this CPU is about 9 % slower without them; a process asks for them where it may",
    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
)


@dataclass(frozen=True, slots=True)
class SystemLimits:
    """Example: read_limits(System(os.environ)).files"""

    files: float
    """Soft limits, as all below; inf for none."""
    locked: float
    """Bytes."""
    processes: float
    adapters: tuple[str, ...]
    """Adapters for RDMA."""
    shared: float
    """Bytes that are free in /dev/shm."""
    thp: str
    """always, madvise or never; empty where the kernel has none."""


def read_limits(system: System) -> SystemLimits:
    text = system.read("proc/self/limits")
    pids = system.numbers("sys/fs/cgroup/pids.max") or system.numbers("sys/fs/cgroup/pids/pids.max")
    adapters = system.path("sys/class/infiniband")
    thp = re.search(r"\[(\w+)\]", system.read(THP))
    shared = os.statvfs(system.path("dev/shm")) if system.path("dev/shm").exists() else None
    return SystemLimits(
        _soft(text, "Max open files"),
        _soft(text, "Max locked memory"),
        min(_soft(text, "Max processes"), pids[0] if pids else inf),
        tuple(sorted(path.name for path in adapters.iterdir())) if adapters.exists() else (),
        shared.f_bavail * shared.f_frsize if shared else 0,
        thp[1] if thp else "",
    )


def check_limits(facts: SystemLimits, kind: Kind, config: RunConfig | None) -> Iterator[Finding]:
    num, tensor_parallel = 3, 1
    if config is not None:
        tensor_parallel = config.rollout.tensor_parallel
        num += (
            config.rollout.max_replicas * config.rollout.devices_on_host + config.num_trainer_ranks
        )
    files = max(FILES_BASE + FILES_EACH * num, FILES_ON_NPU if kind == "npu" else 0)
    if facts.files < files:
        yield NOFILE.found(has=f"{facts.files:g}", wants=files)
    if facts.adapters and facts.locked < inf and kind != "cpu":
        adapters = ", ".join(facts.adapters)
        yield MEMLOCK.found(has=describe_bytes(facts.locked), adapters=adapters)
    if facts.processes < THREADS_EACH * num:
        yield NPROC.found(has=f"{facts.processes:g}", wants=THREADS_EACH * num)
    shared = SHARED_BASE
    if config is not None:
        shared += SHARED_QUEUE * config.rollout.replicas if tensor_parallel > 1 else 0
        shared += SHARED_RANK * (num - 3) if kind != "cpu" else 0
    if facts.shared < shared:
        has, wants = describe_bytes(facts.shared), describe_bytes(shared)
        yield SHARED.found(has=has, wants=wants)
    if facts.thp == "never" and kind == "cpu":
        yield NO_THP.found()


def describe_bytes(number: float) -> str:
    """Example: describe_bytes(64 << 20) == "64 MiB" """
    unit, name = (GIB, "GiB") if number >= GIB else (MIB, "MiB")
    return f"{number / unit:.3g} {name}"


def _soft(text: str, name: str) -> float:
    """A soft limit in /proc/self/limits."""
    found = re.search(rf"(?m)^{name}\s+(\S+)", text)
    return float(found[1]) if found and found[1].isdecimal() else inf
