"""How a process of the pool ended, and in which words it is told."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess
from typing import Any


class _ReadOncePopen(Popen):
    """The fork server tells the exit code once. Of two threads that ask at the same time, CPython
    gives 255 to the one that is second, and to all who ask later."""

    def __init__(self, process: BaseProcess) -> None:
        self._reading = threading.Lock()
        super().__init__(process)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None and not wait([self.sentinel], 0 if flag else None):
            return None
        with self._reading:
            return super().poll(flag)


class _WorkerProcess(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:
        return _ReadOncePopen(process_obj)


class RememberingContext(ForkServerContext):
    """Knows how the process that it started last ended.

    A thread of pebble reads that a call began, and another one looks for dead processes. Where the
    second is first, pebble does not know whose call ended and drops the exit code.
    """

    _started: ForkServerProcess | None = None

    def Process(  # pyright: ignore[reportIncompatibleVariableOverride]  # a class there
        self, *arguments: Any, **named: Any
    ) -> ForkServerProcess:
        self._started = _WorkerProcess(*arguments, **named)
        return self._started

    @property
    def exit_code(self) -> int | None:
        return self._started.exitcode if self._started else None


def describe_exit(code: int | None, limit: float) -> str:
    """`code`: as multiprocessing has it, None where it is not known; `limit`: the deadline."""
    if code is None:
        return "the checker died"
    if code == -signal.SIGALRM:
        return f"no answer within {limit:g} s"
    if code < 0:
        with suppress(ValueError):
            return f"the checker died ({signal.Signals(-code).name})"
    return f"the checker died (exit code {code})"
