"""What LD_PRELOAD brings into each process: allocators, and OpenMP libraries before it is too late."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trimaran.device import Kind
from trimaran.doctor.finding import Check, Fault, Finding, Severity
from trimaran.doctor.system import System

TLS_WORDS = "cannot allocate memory in static TLS block"
ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
JEMALLOC = "/usr/lib/{machine}-linux-gnu/libjemalloc.so.2"
LOAD = "import ctypes, sys\nfor name in sys.argv[1:]: ctypes.CDLL(name)"

GONE = Fault(
    "gone",
    Severity.WARNING,
    "LD_PRELOAD names {name}, which is not there",
    "the loader says so at every start and goes on without it, so the library that somebody wanted"
    " is missing",
    'find / -name "{base}*" 2>/dev/null   # then: export LD_PRELOAD=THAT_PATH, or unset LD_PRELOAD',
    symptom="object cannot be preloaded (cannot open shared object file): ignored",
)
FOREIGN = Fault(
    "foreign",
    Severity.WARNING,
    "LD_PRELOAD names {name}, a library for {built_for}, and this machine is {machine}",
    "the loader ignores it. The guides give one path for each machine",
    "export LD_PRELOAD={jemalloc}",
    symptom="object cannot be preloaded (wrong ELF class or machine): ignored",
)
SEVERAL = Fault(
    "several",
    Severity.WARNING,
    "LD_PRELOAD names {names}: more than one allocator",
    "the first one serves, and memory that one hands out and another takes back ends the process",
    "export LD_PRELOAD={first}",
)
NONE = Fault(
    "no-allocator",
    Severity.WARNING,
    "no jemalloc is preloaded",
    "on NPU hosts, the memory of long runs grows with glibc's allocator until the host has none left:"
    " the guides of MindSpeed-RL and MindSpeed-MM preload jemalloc",
    "apt-get install -y libjemalloc2   # openEuler: yum install jemalloc\n"
    'export LD_PRELOAD="$LD_PRELOAD:{jemalloc}"',
    symptom="out of memory (OOM) on the host after hours or days",
)
STATIC_TLS = Fault(
    "static-tls",
    Severity.ERROR,
    "{name}: " + TLS_WORDS,
    "this copy of libgomp wants thread-local memory that only libraries loaded at the start can"
    " have; whatever imports it, such as scikit-learn, fails",
    'export LD_PRELOAD="$LD_PRELOAD:{name}"',
    symptom=TLS_WORDS,
)
EARLY = Fault(
    "late-libgomp",
    Severity.WARNING,
    "{name} is not preloaded",
    "on ARM, static thread-local memory may be used up when this copy of libgomp is loaded, and"
    " then its import fails: " + TLS_WORDS,
    'export LD_PRELOAD="$LD_PRELOAD:{name}"',
    symptom="libgomp-947d5fa1.so.1.0.0: " + TLS_WORDS,
)
CHECK = Check(
    "preloads",
    "`LD_PRELOAD`: is every library there and for this machine, which allocator serves, and can each"
    " private copy of libgomp be loaded",
    (GONE, FOREIGN, SEVERAL, NONE, STATIC_TLS, EARLY),
)


@dataclass(frozen=True, slots=True)
class Preloads:
    """Example: Preloads("x86_64", ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",), {}, (), ())"""

    machine: str
    names: tuple[str, ...]
    built_for: dict[str, str]
    """Of those that are there: the machine; empty where it is no library."""
    libgomps: tuple[str, ...]
    """Copies that Python packages bring, in the order in which they are found."""
    refused: tuple[str, ...]
    """Of those: which the loader refuses for want of static TLS."""

    @property
    def allocators(self) -> list[str]:
        """That are there, the serving one first."""
        return [name for name in self.built_for if any(word in name for word in ALLOCATORS)]


def read_preloads(system: System) -> Preloads:
    names = tuple(filter(None, re.split(r"[:\s]+", system.variables.get("LD_PRELOAD", ""))))
    built_for = {name: built for name in names if (built := _machine_of(Path(name))) is not None}
    folders = (Path(folder) for folder in dict.fromkeys(system.site) if folder)
    copies = [
        str(path) for folder in folders for path in sorted(folder.glob("*.libs/libgomp*.so*"))
    ]
    return Preloads(
        system.machine, names, built_for, tuple(copies), tuple(_refused(system, copies))
    )


def check_preloads(facts: Preloads, kind: Kind) -> Iterator[Finding]:
    jemalloc = JEMALLOC.format(machine=facts.machine)
    for name in facts.names:
        if name not in facts.built_for:
            yield CHECK.found(GONE, name=name, base=Path(name).name.split(".")[0])
        elif facts.built_for[name] not in ("", facts.machine):
            built_for = facts.built_for[name]
            places = {"machine": facts.machine, "jemalloc": jemalloc}
            yield CHECK.found(FOREIGN, name=name, built_for=built_for, **places)
    allocators = facts.allocators
    if len(allocators) > 1:
        yield CHECK.found(SEVERAL, names=", ".join(allocators), first=allocators[0])
    serving = [name for name in allocators if facts.built_for.get(name) in ("", facts.machine)]
    if not serving and kind == "npu":
        yield CHECK.found(NONE, jemalloc=jemalloc)
    for name in facts.refused:
        yield CHECK.found(STATIC_TLS, name=name)
    if facts.machine == "aarch64":
        for name in facts.libgomps:
            # torch loads its own first, when there is still room.
            if "/torch" not in name and name not in (*facts.names, *facts.refused):
                yield CHECK.found(EARLY, name=name)


def _machine_of(path: Path) -> str | None:
    """None where there is no such file, empty where it is none of ours to tell."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return None
    is_elf = head.startswith(b"\x7fELF") and len(head) == 20
    return ELF_MACHINES.get(struct.unpack_from("<H", head, 18)[0], "other") if is_elf else ""


def _refused(system: System, copies: list[str]) -> Iterator[str]:
    """Loads them one after the other in a process of their own, as imports would."""
    for end in range(1, len(copies) + 1):
        loading = system.run(sys.executable, "-S", "-c", LOAD, *copies[:end])
        if loading is not None and TLS_WORDS in loading.stderr:
            yield copies[end - 1]
