"""What child.py is given: the program, and what it may have on this host."""

from __future__ import annotations

import math
import os
import platform
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from typing import Any

from trimaran.errors import UnavailableError
from trimaran.sandbox.seccomp import AUDIT_ARCH, make_filter

KIB, MIB = 1 << 10, 1 << 20
MAX_THREADS = 64
MAX_OPEN_FILES = 64
REMEDY = (
    "run the reward service on Linux (x86_64 or aarch64) with seccomp filters, or give the answers"
    " to an executor elsewhere: {plugin: {url: …, protocol: sandbox_fusion}}"
)


class SandboxError(UnavailableError):
    """This host cannot confine a program; the program did not run."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What a program may use.

    Example:
        SandboxLimits(seconds=2.0, memory_mib=256)
    """

    seconds: float = 4.0
    """By the clock."""
    memory_mib: int = 1024
    """Address space."""
    processor_seconds: int | None = None
    """None: `seconds`, rounded up."""


@dataclass(frozen=True, slots=True)
class SandboxHost:
    """What this host has for a program."""

    filters: tuple[str, str]
    """The seccomp filter in hexadecimal, without and with Landlock to guard files."""
    readable: tuple[str, ...]
    """Python, its packages and the libraries that they load."""
    packages: tuple[str, ...]
    """What the program may import from."""


@cache
def this_host() -> SandboxHost:
    """Raises SandboxError for a system or machine that has no filter."""
    return SandboxHost(_filters(), _readable(), _packages())


def make_job(
    source: str, limits: SandboxLimits, status_fd: int, host: SandboxHost
) -> dict[str, Any]:
    return {
        "source": source,
        "parent": os.getpid(),
        "status_fd": status_fd,
        "filters": host.filters,
        "readable": host.readable,
        "packages": host.packages,
        "max_threads": MAX_THREADS,
        "limits": {
            "RLIMIT_CPU": limits.processor_seconds or math.ceil(limits.seconds),
            "RLIMIT_AS": limits.memory_mib * MIB,
            "RLIMIT_FSIZE": 0,
            "RLIMIT_NOFILE": MAX_OPEN_FILES,
            "RLIMIT_CORE": 0,
        },
    }


def _filters() -> tuple[str, str]:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in AUDIT_ARCH:
        raise SandboxError(f"no sandbox for {sys.platform} on {machine}; {REMEDY}")
    return make_filter(machine, False).hex(), make_filter(machine, True).hex()


def _packages() -> tuple[str, ...]:
    """The packages of the Python that runs the service can be imported; what a .pth file adds,
    such as a checkout of Trimaran itself, cannot."""
    return tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))


def _readable() -> tuple[str, ...]:
    python = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    libraries = (f"{sys.base_prefix}/lib", "/usr/lib", "/usr/lib64", "/lib", "/lib64")
    data = ("/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")
    devices = ("/dev/urandom", "/dev/random", "/dev/zero")
    return tuple(dict.fromkeys((*python, *libraries, *_packages(), *data, *devices)))
