"""Who of a driven run lives, read from the notes that newborns leave."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.faults_runs.entry import who

CLOCK_SECONDS = 0.5
"""By which the kernel's word on when a process began may be off."""


@dataclass(frozen=True, slots=True)
class Life:
    """One process, from its birth on."""

    name: str
    """RUN.PROCESS, or a command, as `entry.who` says."""
    pid: int
    born: float
    """Unix seconds."""

    def send(self, number: signal.Signals) -> None:
        with suppress(psutil.NoSuchProcess):
            if process := self._process:
                process.send_signal(number)

    @property
    def status(self) -> str:
        """As psutil has it; empty once it is gone."""
        try:
            return process.status() if (process := self._process) else ""
        except psutil.NoSuchProcess:
            return ""

    @property
    def _process(self) -> psutil.Process | None:
        """None once its number is free, or another process's."""
        try:
            process = psutil.Process(self.pid)
        except psutil.NoSuchProcess:
            return None
        return process if process.create_time() < self.born + CLOCK_SECONDS else None

    @property
    def alive(self) -> bool:
        return self.status not in ("", psutil.STATUS_ZOMBIE)


class Lives:
    """Example: `lives.alive["r-1.rollout-0"].send(signal.SIGKILL)`"""

    def __init__(self, notes: Path) -> None:
        self._notes = notes
        self._all: dict[int, Life] = {}

    def all(self) -> list[Life]:
        """In the order of their births."""
        for note in self._notes.iterdir():
            if note.name.isdigit() and int(note.name) not in self._all:
                content = json.loads(note.read_text())
                life = Life(who(content["arguments"]), int(note.name), content["time"])
                self._all[life.pid] = life
        return sorted(self._all.values(), key=lambda life: life.born)

    @property
    def alive(self) -> dict[str, Life]:
        """The newest life of each name, where it goes on."""
        self.reap()
        return {life.name: life for life in self.all() if life.alive}

    def reap(self) -> None:
        """Orphans that fell to us and have ended: as init does."""
        for life in self.all():
            if life.status == psutil.STATUS_ZOMBIE:
                with suppress(ChildProcessError):
                    os.waitpid(life.pid, os.WNOHANG)
