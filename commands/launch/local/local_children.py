"""Processes of this machine: start them, hear of their end, end them. It decides nothing.

Each service leads its own process group, so Ctrl-C reaches only the launcher and what a service
started can be ended with it. When the launcher itself is killed, the kernel signals the services,
and a guardian ends what is left of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from commands.launch.local import guardian
from commands.launch.service_process import Exit, ServiceProcess
from trimaran.host.lifetime import PARENT_VARIABLE, kill_group
from trimaran.host.shared_memory import SUFFIX, remove_left

logger = logging.getLogger(__name__)

KILLED_SECONDS = 15.0
"""For a process to be gone that was killed, or that has nothing left to do."""
ORPHAN_SECONDS = 5.0
"""For the services' own orderly end after the launcher was killed."""


@dataclass(frozen=True, slots=True)
class LocalChild:
    """A service's process that lives."""

    service: ServiceProcess
    process: asyncio.subprocess.Process
    log_start: int
    began: float
    """On the monotonic clock."""

    @property
    def incarnation(self) -> str:
        return f"{self.process.pid} {self.began}"

    @property
    def address(self) -> str:
        return self.service.address

    def is_stopped(self) -> bool:
        return is_stopped(self.process.pid)


class LocalChildren:
    """`commands.launch.children.Children` as processes of this machine.

    Example:
        children = LocalChildren()
        await children.open()
        await children.start(service)
        ended = await children.exits.get()
    """

    def __init__(self, orphan_seconds: float = ORPHAN_SECONDS) -> None:
        self.alive: dict[str, LocalChild] = {}
        self.exits: asyncio.Queue[Exit] = asyncio.Queue()
        self._orphan_seconds = orphan_seconds
        self._ended: set[int] = set()
        """Process ids that `end` was asked for."""
        self._watchers: dict[int, asyncio.Task[None]] = {}
        self._guardian: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        self._guardian = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", guardian.__file__, str(self._orphan_seconds)),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    async def start(self, service: ServiceProcess) -> None:
        """Raises OSError where it cannot be started."""
        starting = asyncio.ensure_future(self._start(service))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # a process that is not known would be left behind
            raise

    async def _start(self, service: ServiceProcess) -> None:
        with service.log.open("ab") as log:
            log_start = log.tell()
            process = await asyncio.create_subprocess_exec(
                *service.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**service.environment, PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
            )
        self._tell_guardian("+", process.pid)
        child = LocalChild(service, process, log_start, time.monotonic())
        self.alive[service.name] = child
        self._watchers[process.pid] = asyncio.create_task(self._watch(child))

    def can_start(self, name: str) -> bool:
        return True

    async def end(self, names: Iterable[str], seconds: float) -> None:
        """SIGTERM, `seconds` for an orderly end, SIGKILL. Returns when they are gone."""
        children = [self.alive[name] for name in names if name in self.alive]
        watchers = [self._watchers[child.process.pid] for child in children]
        for child in children:
            self._ended.add(child.process.pid)
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                child.process.send_signal(signal.SIGTERM)
                child.process.send_signal(signal.SIGCONT)  # a stopped one would not hear it
        if not watchers:
            return
        _, pending = await asyncio.wait(watchers, timeout=seconds)
        for child in children if pending else ():
            kill_group(child.process.pid)
        if pending:
            await asyncio.wait(pending, timeout=KILLED_SECONDS)

    def kill(self, name: str) -> None:
        """SIGKILL to the process and what it started; it counts as a death of its own."""
        if name in self.alive:
            kill_group(self.alive[name].process.pid)

    def kill_all(self) -> None:
        for name in list(self.alive):
            self.kill(name)

    async def close(self) -> None:
        """Ends what is left at once."""
        self.kill_all()
        if self._watchers:
            await asyncio.wait(self._watchers.values(), timeout=KILLED_SECONDS)
        if self._guardian:
            await _stop_guardian(self._guardian)

    def _tell_guardian(self, sign: str, group: int) -> None:
        assert self._guardian and self._guardian.stdin
        self._guardian.stdin.write(f"{sign}{group}\n".encode())

    async def _watch(self, child: LocalChild) -> None:
        pid = child.process.pid
        code = await child.process.wait()
        kill_group(pid)  # what the service itself started and did not end
        try:
            await asyncio.to_thread(remove_left, child.service.log.with_suffix(SUFFIX))
        except OSError as error:
            logger.warning("%s: its shared memory stays: %s", child.service.name, error)
        self._tell_guardian("-", pid)
        del self.alive[child.service.name], self._watchers[pid]
        if pid in self._ended:
            self._ended.discard(pid)
        else:
            lived = time.monotonic() - child.began
            self.exits.put_nowait(Exit(child.service, code, lived, child.log_start))


async def _stop_guardian(process: asyncio.subprocess.Process) -> None:
    assert process.stdin
    process.stdin.close()  # it knows of no group any more, so it ends by itself
    try:
        async with asyncio.timeout(KILLED_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()


def is_stopped(pid: int) -> bool:
    """Whether the kernel does not let it run until it gets SIGCONT."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has just ended
        return False
    return stat.rpartition(")")[2].split()[0] == "T"
