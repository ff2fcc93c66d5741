"""How a process of the pool ended, and in which words it is told."""

from __future__ import annotations

import signal
from contextlib import suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any


class RememberingContext(ForkServerContext):
    """Knows how the process that it started last ended.

    A thread of pebble reads that a call began, and another one looks for dead processes. Where the
    second is first, pebble does not know whose call ended and drops the exit code.
    """

    _started: ForkServerProcess | None = None

    def Process(  # pyright: ignore[reportIncompatibleVariableOverride]  # a class there
        self, *arguments: Any, **named: Any
    ) -> ForkServerProcess:
        self._started = ForkServerProcess(*arguments, **named)
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
