"""A process of a run, and how one ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from trimaran.errors import TrimaranError
from trimaran.run.exits import BAD_INPUT, FAILED

NUM_LAST_LINES = 20
LONGEST_LINE = 400


@dataclass(frozen=True, slots=True)
class StopTimes:
    """Seconds between SIGTERM and SIGKILL.

    Example: Processes(services, StopTimes(running=60))
    """

    leader: float = 5.0
    """The controller ends first, so that the services do not look to it as if they failed."""
    running: float = 15.0
    """All others, once the run is under way."""
    loading: float = 3.0
    """All others before that: there is nothing to save, and a process that loads a model is deaf."""
    drained: float = 30.0
    """A replica that is taken away while the run goes on."""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One process of a run.

    Example: ServiceProcess("reward", ("trimaran", "serve", ...), os.environ, Path("logs/reward.log"))
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    leads: bool = False
    """The run ends when this one says so: with exit code 0 well, with 1 because it has failed."""
    takes_along: frozenset[str] = frozenset()
    """Names of those that cannot go on without it: they are ended and started again with it."""
    expendable: bool = False
    """When it dies again and again, the run goes on without it while another such lives."""
    address: str = ""
    """host:port at which its health is asked; empty: it is not asked, or known only once it runs."""
    kind: str = ""
    """As `trimaran serve` takes it, with `index`."""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """A process that has ended."""

    service: ServiceProcess
    code: int
    """Negative: the signal that killed it."""
    lived_seconds: float
    log_start: int = 0
    """Where in its log its own lines begin."""
    why: str = ""
    """How it ended, where its exit code is not known."""
    lines: tuple[str, ...] | None = None
    """Its last ones, where its log is on another host."""
    left: bool = False
    """A replica that went in order: no death. It is out of the run until it is added again."""

    @property
    def how(self) -> str:
        if self.why:
            return self.why
        if self.code >= 0:
            return f"exit code {self.code}"
        return f"killed by {signal.Signals(-self.code).name}"

    @property
    def log(self) -> str:
        """Where its whole log is, in words."""
        if self.lines is None:
            return str(self.service.log)
        return f"that of {self.service.name} on its host"

    def last_lines(self) -> list[str]:
        text = "\n".join(self.lines) if self.lines is not None else self._own_log()
        lines = [line.rstrip()[:LONGEST_LINE] for line in text.splitlines() if line.strip()]
        lines = lines[-NUM_LAST_LINES:]
        if self.code == BAD_INPUT:  # it has said what is wrong: what stands before only distracts
            return [*dropwhile(lambda line: not line.startswith("error: "), lines)] or lines
        return lines

    def _own_log(self) -> str:
        with self.service.log.open("rb") as log:
            # It may have been shortened since.
            log.seek(self.log_start if self.log_start < log.seek(0, os.SEEK_END) else 0)
            return log.read().decode(errors="replace")


class ServiceDiedError(TrimaranError):
    """A service ended that should not have, and is not started again; the text holds its own last
    lines."""

    def __init__(self, died: Exit, started: bool) -> None:
        service = died.service
        when = "died" if started else "died at start"
        super().__init__(
            "\n".join(
                [
                    f"{service.name} {when} ({died.how}). Its last lines:",
                    *(f"  {line}" for line in died.last_lines() or ["(it wrote nothing)"]),
                    f"its whole log: {died.log}",
                ]
            )
        )
        self.exit_code = BAD_INPUT if died.code == BAD_INPUT else FAILED
        self.started = started
        """The run was already running, so there is something to resume."""
