"""Where facts are read: an environment, and the file system below a folder.

Tests give other ones, with files and programs of their own. Nothing here changes a host.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TOOL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class System:
    """This machine, as a process with these variables sees it.

    Example: System(os.environ).read("proc/sys/net/ipv4/ip_local_port_range")
    """

    variables: Mapping[str, str]
    root: Path = Path("/")
    """Under which proc, sys, dev, etc and usr lie."""
    site: Sequence[str] = field(default_factory=lambda: tuple(sys.path))
    """Folders in which Python packages lie."""
    machine: str = field(default_factory=lambda: os.uname().machine)
    """x86_64 or aarch64."""
    python: str = field(default_factory=platform.python_version)

    def path(self, name: str) -> Path:
        """Example: system.path("/etc/hosts") == system.root / "etc/hosts" """
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """The text of a file; empty where it cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def numbers(self, name: str) -> list[int]:
        """Those that a file of /proc or /sys consists of."""
        return [int(word) for word in self.read(name).split() if word.isdecimal()]

    def run(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str] | None:
        """None where there is no such program, or it does not end."""
        program = shutil.which(command[0], path=self.variables.get("PATH", ""))
        if program is None:
            return None
        try:
            return subprocess.run(
                [program, *command[1:]],
                env=dict(self.variables),
                input=given,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TOOL_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
