"""Stand-in services, and how to see whether their processes live."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from commands.launch.service_process import ServiceProcess

STAND_IN = Path(__file__).with_name("stand_in.py")
PATIENCE_SECONDS = 60.0


def make_services(folder: Path, tasks: Mapping[str, str]) -> list[ServiceProcess]:
    """Name -> what it does; "controller" leads, a "rollout-…" is expendable, a "trainer-…" takes
    the other ranks and the controller along."""
    ranks = {name for name in tasks if name.startswith("trainer")}
    return [
        ServiceProcess(
            name=name,
            command=(sys.executable, str(STAND_IN), what, str(folder / name)),
            environment=dict(os.environ),
            log=folder / f"{name}.log",
            leads=name == "controller",
            takes_along=frozenset(ranks | {"controller"}) - {name}
            if name in ranks
            else frozenset(),
            expendable=name.startswith("rollout"),
        )
        for name, what in tasks.items()
    ]


def pid_of(mark: Path) -> int:
    """Waits until the stand-in is up."""
    wait_until(mark.exists, f"{mark.name} to be up")
    return int(mark.read_text())


def is_alive(pid: int) -> bool:
    """A process that only waits to be reaped is not alive."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
