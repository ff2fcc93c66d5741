"""Real processes that start fast: forked from one that has imported everything.

A fork server, single-threaded, is started once and loads torch and gRPC; each
process of the house is a fork of it with an address space, descriptors and a
log of its own, and dies with it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests import marked
from trimaran.host.lifetime import die_with_parent

POLL_SECONDS = 0.005
END_SECONDS = 30.0

_context = multiprocessing.get_context("forkserver")


def preload(modules: list[str]) -> None:
    """Before the first process starts. The environment of that moment is every process's."""
    _context.set_forkserver_preload(modules)


class Usage(NamedTuple):
    descriptors: int
    threads: int


@dataclass(slots=True, eq=False)
class Child:
    """One life of one process."""

    name: str
    process: ForkServerProcess
    pid: int
    _gone: bool = False

    @property
    def alive(self) -> bool:
        if not self._gone and self.process.exitcode is not None:
            self._gone = True
            self.process.close()  # a descriptor for each life
        return not self._gone

    def stopped(self) -> list[psutil.Process]:
        """It or what it has started, where that stands still."""
        return [one for one in self._tree() if _status(one) == psutil.STATUS_STOPPED]

    def _tree(self) -> list[psutil.Process]:
        try:
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def usage(self) -> Usage:
        folder = f"/proc/{self.pid}"
        return Usage(len(os.listdir(f"{folder}/fd")), len(os.listdir(f"{folder}/task")))

    def kill(self) -> None:
        if not self.alive:
            return
        self.process.kill()
        self.process.join(END_SECONDS)
        assert not self.alive, f"{self.name} does not die of SIGKILL"

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for process in self.stopped():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    async def end(self) -> None:
        """SIGTERM, as an operator does."""
        self.thaw()
        if self.alive:
            self.process.terminate()
        await until(lambda: not self.alive, END_SECONDS, f"{self.name} to end")


def start(name: str, log: Path, target: Callable[..., None], *arguments: object) -> Child:
    process = _context.Process(target=_run, args=(log, target, arguments), name=name)
    process.start()
    assert process.pid
    return Child(name, process, process.pid)


def survivors(value: str) -> list[str]:
    """Processes with this mark that are still there after a while, but for ours."""
    servers: Any = (forkserver._forkserver, resource_tracker._resource_tracker)
    ours = {os.getpid(), servers[0]._forkserver_pid, servers[1]._pid}
    left = marked.survivors(value, END_SECONDS, ours)
    return [f"{one.pid} {' '.join(marked.words(one))}" for one in left]


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return ""


def _run(log: Path, target: Callable[..., None], arguments: tuple) -> None:
    die_with_parent(os.getppid(), signal.SIGKILL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    target(*arguments)


async def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Raises TimeoutError that says what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(POLL_SECONDS)
