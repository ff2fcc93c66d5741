"""Host memory: what is free, and what a run needs at least."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from commands.doctor.checks.limits import describe_bytes
from commands.doctor.finding import Finding, KnownFault, Severity
from commands.doctor.system import System
from services.manager.admission.costs import GIB, MAIN_STATE
from trimaran.config import RunConfig
from trimaran.host.device import Kind

CGROUPS = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Limit and use in cgroups of version 2 and of version 1."""
GRADIENTS = 2
"""Bytes of float32 gradients for each byte of a bfloat16 model."""

TOO_LITTLE = KnownFault(
    "memory/too-little",
    Severity.ERROR,
    "this run needs {needs} of host memory at least ({parts}), and this machine, or this"
    " container, has {total}",
    "the system ends a process of the run when memory is full",
    "rollout.replicas, rollout.kv_cache_gib, reward.workers, reward.memory_mib   # lower one, or use"
    " a larger machine",
)
IN_USE = KnownFault(
    "memory/in-use",
    Severity.WARNING,
    "this run needs {needs} of host memory at least ({parts}), and {free} are free",
    "others hold the rest; the system ends a process when memory is full",
    "ps -eo pid,rss,args --sort=-rss | head   # end what is left over from another run",
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. Example: Memory(total=24 << 30, free=16 << 30)"""

    total: int
    free: int


def read_memory(system: System) -> Memory:
    """Without swap: each step reads and writes all of the trainer's state, and each token all of a
    replica's weights, so a run that lives in swap goes at the speed of a disk."""
    sizes = dict(re.findall(r"(?m)^(\w+):\s+(\d+) kB$", system.read("proc/meminfo")))
    total, free = (int(sizes.get(name, 0)) << 10 for name in ("MemTotal", "MemAvailable"))
    for most, used in CGROUPS:
        limit, usage = system.numbers(most), system.numbers(used)
        if limit and limit[0] < total:
            total, free = limit[0], min(free, limit[0] - sum(usage[:1]))
    return Memory(total, free)


def model_bytes(config: RunConfig) -> int:
    """Bytes of the model's weights on this host; 0 where they are not here."""
    return sum(path.stat().st_size for path in Path(config.model.path).glob("*.safetensors"))


def needs_of(config: RunConfig, kind: Kind, is_alone: bool = False) -> Mapping[str, float]:
    """What for -> bytes, at least, on this host; the sizes of the model's files, and nothing else,
    are read. What comes here of a run over several hosts is not known: one replica counts.
    `is_alone`: it is one replica."""
    is_spread = is_alone or config.network.subnet is not None
    model, replicas = model_bytes(config), 1 if is_spread else config.rollout.replicas
    needs: dict[str, float] = {"replicas' copies of a version on its way": model * replicas}
    if kind == "cpu":
        needs["replicas' weights"] = model * replicas / config.rollout.hosts
        needs["keys and values"] = config.rollout.kv_cache_gib * replicas * GIB
    if is_spread:
        return needs
    needs["the trainer's copy of the version"] = model
    if kind == "cpu":
        needs["the trainer's weights, gradients and moments"] = model * (1 + MAIN_STATE + GRADIENTS)
    workers = config.reward.workers * config.reward.memory_mib << 20
    return needs | {"reward workers at their limit": workers}


def check_memory(facts: Memory, needs: Mapping[str, float]) -> Iterator[Finding]:
    whole = sum(needs.values())
    places = {
        "needs": describe_bytes(whole),
        "parts": ", ".join(
            f"{describe_bytes(size)} {what}" for what, size in needs.items() if size
        ),
    }
    if whole > facts.total:
        yield TOO_LITTLE.found(total=describe_bytes(facts.total), **places)
    elif whole > facts.free:
        yield IN_USE.found(free=describe_bytes(facts.free), **places)
