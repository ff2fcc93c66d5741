"""What starts the launcher of a run, and finds it again.

A launcher (`trimaran launch RUN_FOLDER`) starts, watches and ends the processes of one run. It lives
in a session of its own and outlives who started it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from trimaran.errors import UnavailableError
from trimaran.run_context import RunContext

MARK = "TRIMARAN_LAUNCHED"
"""Environment variable of a launcher and of all that it starts: the run's folder. By it a manager
that was started again finds them, and knows when the last one is gone."""
LOG_NAME = "launcher.log"


class Presence(StrEnum):
    """Of a launcher and the processes that it has started."""

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
    return (sys.executable, "-m", "trimaran.cli", "launch", str(run.folder))


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
        self._children: list[subprocess.Popen[bytes]] = []

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
            raise UnavailableError(
                f"run {run.run_id}: no launcher can be started ({error}); see that the manager may"
                f" start processes and write {log}"
            ) from None
        self._children.append(child)

    async def kill(self, run: RunContext) -> None:
        found = await asyncio.to_thread(lambda: list(_marked()))
        own = [
            (pid, is_launcher) for pid, folder, is_launcher in found if folder == str(run.folder)
        ]
        for pid, _ in [one for one in own if one[1]] or own:
            _kill(pid, str(run.folder))

    async def find(self, runs: Sequence[RunContext]) -> Mapping[str, Presence]:
        self._children = [child for child in self._children if child.poll() is None]
        launchers: set[str] = set()
        others: set[str] = set()
        for _, folder, is_launcher in await asyncio.to_thread(lambda: list(_marked())):
            (launchers if is_launcher else others).add(folder)

        def presence(folder: str) -> Presence:
            if folder in launchers:
                return Presence.THERE
            return Presence.ENDING if folder in others else Presence.GONE

        return {run.run_id: presence(str(run.folder)) for run in runs}


def _marked(proc: Path = Path("/proc")) -> Iterator[tuple[int, str, bool]]:
    """Process id, run folder, and whether it is a launcher, of each process with our mark."""
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        # Gone meanwhile, or another user's: none of ours.
        with suppress(OSError):
            if folder := _mark_of(entry):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                is_launcher = words[-3:] == [b"launch", os.fsencode(folder), b""]
                yield int(entry.name), folder, is_launcher


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
