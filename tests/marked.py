"""Finds the processes that a test has started, whatever started them for it: by a mark in their
environment."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import psutil

MARK = "TRIMARAN_TEST_MARK"


def marked(value: str | Path, ours: Collection[int] = ()) -> list[psutil.Process]:
    """Those that live with this value of the mark, but for `ours`."""
    return [p for p in psutil.process_iter() if p.pid not in ours and _is_marked(p, str(value))]


def survivors(
    value: str | Path, seconds: float, ours: Collection[int] = ()
) -> list[psutil.Process]:
    """Those that still live after so many seconds."""
    deadline = time.monotonic() + seconds
    while (alive := marked(value, ours)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def words(process: psutil.Process) -> list[str]:
    """Its command line; nothing when it has ended since it was found."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # or a zombie
        return []


def _is_marked(process: psutil.Process, value: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == value
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
