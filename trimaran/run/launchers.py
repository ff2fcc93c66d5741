"""What starts the launcher of a run, and finds it again.

A launcher (`trimaran launch RUN_FOLDER`) starts, watches and ends the processes of one run. It lives
in a session of its own and outlives the process that started it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from trimaran.config import RunConfig
from trimaran.errors import InputError, UnavailableError
from trimaran.host.system_errors import refused
from trimaran.run.context import RunContext

MARK = "TRIMARAN_LAUNCHED"
"""Environment variable of a launcher and of all that it starts: the run's folder. By it a manager
that was started again finds them, and knows when the last one is gone."""
LOG_NAME = "launcher.log"
EXECUTING_SECONDS = 2.0
"""For the kernel to show what a process that has just been executed was given; it takes some ms, and
longer on a busy machine."""
EXECUTING_POLL_SECONDS = 0.005
NOT_OURS = FileNotFoundError, ProcessLookupError, PermissionError
"""Errors of a look at a process that is gone meanwhile, or another user's."""
LEAVING_FLAGS = 0x00200000 | 0x4
"""In a process's stat: a thread of the kernel, or one that ends (PF_KTHREAD, PF_EXITING)."""


class Presence(StrEnum):
    """Whether a launcher and the processes that it has started are there."""

    GONE = "gone"
    ENDING = "ending"
    """It is gone itself; what it had started is being ended."""
    THERE = "there"


class Launcher(Protocol):
    """Starts launchers where the devices of a pool are.

    Example:
        launcher = LocalLauncher(os.environ)
        await launcher.start(run, secrets={})
        (await launcher.find([run]))[run.run_id] is Presence.THERE
    """

    async def start(self, run: RunContext, secrets: Mapping[str, str]) -> None:
        """Starts a launcher for the run, whose folder has a context and a configuration.

        `secrets`: environment variables that no other run's launcher gets.
        Raises UnavailableError where none can be started.
        """
        ...

    async def kill(self, run: RunContext) -> None:
        """Ends the run's launcher at once; what it has started ends with it. Where it is gone, ends
        what it has left behind. Idempotent."""
        ...

    async def find(self, runs: Sequence[RunContext]) -> Mapping[str, Presence]:
        """By run id. A frozen process is there, too."""
        ...


def launch_command(run: RunContext) -> tuple[str, ...]:
    return (sys.executable, "-m", "commands.cli", "launch", str(run.folder))


class LocalLauncher:
    """Launchers as processes of this machine. They log to RUN/logs/launcher.log."""

    def __init__(
        self,
        environment: Mapping[str, str],
        command: Callable[[RunContext], tuple[str, ...]] = launch_command,
    ) -> None:
        """`environment`: of every launcher, without secrets of some. `command` ends with the words launch RUN_FOLDER, by which
        a launcher is known."""
        self._environment, self._command = environment, command
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        """Launchers that this process has started, by the run's folder."""

    async def start(self, run: RunContext, secrets: Mapping[str, str]) -> None:
        log = run.folder / "logs" / LOG_NAME
        try:
            log.parent.mkdir(exist_ok=True)
            with log.open("ab") as file:
                child = subprocess.Popen(  # returns when the new program runs: no await  # noqa: ASYNC220
                    self._command(run),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env={**self._environment, **secrets, MARK: str(run.folder)},
                    start_new_session=True,
                )
        except OSError as error:
            raise refused(
                f"run {run.run_id}: no launcher can be started",
                error,
                f"see that the manager may start processes and write {log}",
            ) from None
        self._children[str(run.folder)] = child

    async def kill(self, run: RunContext) -> None:
        folder = str(run.folder)
        child = self._living().get(folder)
        if child is not None:
            child.kill()
        found = await self._look()
        own = [(pid, is_launcher) for pid, marked, is_launcher in found if marked == folder]
        launchers = [one for one in own if one[1]]
        for pid, _ in launchers if launchers or child else own:
            _kill(pid, folder)

    async def find(self, runs: Sequence[RunContext]) -> Mapping[str, Presence]:
        # A child is there, whatever /proc shows of it so early. Of launchers that an earlier manager
        # has started, /proc alone tells.
        launchers = set(self._living())
        others: set[str] = set()
        for _, folder, is_launcher in await self._look():
            (launchers if is_launcher else others).add(folder)

        def presence(folder: str) -> Presence:
            if folder in launchers:
                return Presence.THERE
            return Presence.ENDING if folder in others else Presence.GONE

        return {run.run_id: presence(str(run.folder)) for run in runs}

    async def _look(self) -> list[tuple[int, str, bool]]:
        """Raises UnavailableError: who cannot look has not seen that anybody is gone."""
        try:
            return await asyncio.to_thread(lambda: list(_marked()))
        except OSError as error:
            raise UnavailableError(
                f"/proc: the launchers cannot be seen ({error}); where too many files are open,"
                " raise the limit of the manager's process (ulimit -n)"
            ) from None

    def _living(self) -> Mapping[str, subprocess.Popen[bytes]]:
        """Our children that have not ended; the others are reaped."""
        self._children = {
            folder: child for folder, child in self._children.items() if child.poll() is None
        }
        return self._children


def _marked(
    proc: Path = Path("/proc"), patience: float = EXECUTING_SECONDS
) -> Iterator[tuple[int, str, bool]]:
    """Process id, run folder, and whether it is a launcher, of each process with our mark.

    `patience`: seconds to wait, in all, for processes that are just being executed. Who shows nothing
    for longer is taken for no launcher's: it may hang on a disk for hours.
    """
    deadline = time.monotonic() + patience
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(*NOT_OURS):
            while _is_being_executed(entry) and time.monotonic() < deadline:
                time.sleep(EXECUTING_POLL_SECONDS)
            if folder := _mark_of(entry):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                is_launcher = words[-3:] == [b"launch", os.fsencode(folder), b""]
                yield int(entry.name), folder, is_launcher


def _is_being_executed(process: Path) -> bool:
    """It lives, and the kernel has not filled in its command line and environment yet."""
    if (process / "environ").read_bytes() or (process / "cmdline").read_bytes():
        return False
    # The name stands in brackets and may hold anything. proc_pid_stat(5): state is the third field,
    # flags are the ninth.
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return fields[0] not in ("Z", "X") and not int(fields[6]) & LEAVING_FLAGS


def _mark_of(process: Path) -> str:
    """Empty without a mark. A process that has ended has no environment any more."""
    start = f"{MARK}=".encode()
    words = (process / "environ").read_bytes().split(b"\0")
    return next((os.fsdecode(word[len(start) :]) for word in words if word.startswith(start)), "")


def _kill(pid: int, folder: str) -> None:
    """The id may be another process's by now: it is looked at once more, through a handle."""
    with suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if _mark_of(Path("/proc") / str(pid)) == folder:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def check_hosts(config: RunConfig, launcher: str) -> None:
    """Raises InputError where a replica wants more hosts than the launcher has, and where pools that
    take turns would be placed apart."""
    if launcher != "local" and config.is_colocated:
        raise InputError(
            f"run.pools: colocated, and the launcher is `{launcher}`, which gives each process devices of"
            " its own; take the launcher `local`, on one host, or set run.pools=separate"
        )
    if launcher == "local" and config.rollout.hosts > 1:
        raise InputError(
            f"rollout.hosts: {config.rollout.hosts} hosts for one replica, and the launcher `local`"
            " starts all on this machine; use --launcher ray, or services that are started on their"
            " hosts (docs/deploy.md)"
        )
