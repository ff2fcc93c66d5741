"""What programs have started, waiting for its end, and hosts that deny a layer."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

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


def deny(module: Any, *layers: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child of `module`, of which `folder` becomes a copy, finds that its host has none of these."""
    shutil.copytree(module.CHILD.parent, folder)
    source = (folder / "layers.py").read_text()
    for layer in layers:
        source, count = re.subn(rf"(def {layer}\(.*\) -> bool:\n)", r"\1    return False\n", source)
        assert count == 1
    (folder / "layers.py").write_text(source)
    monkeypatch.setattr(module, "CHILD", folder / module.CHILD.name)
