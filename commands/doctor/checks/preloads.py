"""What LD_PRELOAD brings into each process: an allocator, and OpenMP libraries before it is too late."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commands.doctor.finding import Finding, KnownFault, Severity
from commands.doctor.system import System
from trimaran.host.device import Kind

TLS_WORDS = "cannot allocate memory in static TLS block"
ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
JEMALLOC = "/usr/lib/{machine}-linux-gnu/libjemalloc.so.2"
LOAD = "import ctypes, sys\nfor name in sys.argv[1:]: ctypes.CDLL(name)"

NONE = KnownFault(
    "preloads/no-allocator",
    Severity.WARNING,
    "no jemalloc is preloaded",
    "on NPU hosts, the memory of long runs grows with glibc's allocator until the host has none left:"
    " the guides of MindSpeed-RL and MindSpeed-MM preload jemalloc",
    "apt-get install -y libjemalloc2   # openEuler: yum install jemalloc\n"
    'export LD_PRELOAD="$LD_PRELOAD:{jemalloc}"',
)
STATIC_TLS = KnownFault(
    "preloads/static-tls",
    Severity.ERROR,
    "{name}: " + TLS_WORDS,
    "this copy of libgomp wants thread-local memory that only libraries loaded at the start can"
    " have; whatever imports it, such as scikit-learn, fails",
    'export LD_PRELOAD="$LD_PRELOAD:{name}"',
)


@dataclass(frozen=True, slots=True)
class Preloads:
    """Example: read_preloads(System(os.environ)).refused"""

    machine: str
    has_allocator: bool
    refused: tuple[str, ...]
    """Copies of libgomp in Python packages that the loader refuses for want of static TLS."""


def read_preloads(system: System) -> Preloads:
    names = system.variables.get("LD_PRELOAD", "").replace(":", " ").split()
    allocators = [name for name in names if any(word in name for word in ALLOCATORS)]
    folders = (Path(folder) for folder in dict.fromkeys(system.site) if folder)
    copies = [
        str(path) for folder in folders for path in sorted(folder.glob("*.libs/libgomp*.so*"))
    ]
    has_allocator = any(Path(name).exists() for name in allocators)
    return Preloads(system.machine, has_allocator, tuple(_refused(system, copies)))


def check_preloads(facts: Preloads, kind: Kind) -> Iterator[Finding]:
    if not facts.has_allocator and kind == "npu":
        yield NONE.found(jemalloc=JEMALLOC.format(machine=facts.machine))
    for name in facts.refused:
        yield STATIC_TLS.found(name=name)


def _refused(system: System, copies: list[str]) -> Iterator[str]:
    """Loads them one after the other in a process of their own, as imports would."""
    for end in range(1, len(copies) + 1):
        loading = system.run(sys.executable, "-S", "-c", LOAD, *copies[:end])
        if loading is not None and TLS_WORDS in loading.stderr:
            yield copies[end - 1]
