"""What programs have started, and waiting for its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import psutil

ENDED = 30.0
"""Seconds within which anything that was ended must be gone, also on a slow day."""


def started_by(pid: int | None = None) -> list[psutil.Process]:
    """By a process, this one by default, and by what it has started."""
    return living(psutil.Process(pid).children(recursive=True))


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENDED
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
