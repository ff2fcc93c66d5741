"""Runs foreign Python in a process of its own that may do next to nothing.

child.py gives up each right; this side starts it, feeds it, bounds its output and its
time, and ends it. docs/reward-code.md says what this stops and what it does not.
"""

from __future__ import annotations

import logging
import marshal
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

from trimaran.sandbox.job import (
    REMEDY,
    SandboxError,
    SandboxHost,
    SandboxLimits,
    make_job,
    this_host,
)
from trimaran.sandbox.talk import talk

logger = logging.getLogger(__name__)

CHILD = Path(__file__).with_name("child.py")
START_SECONDS = 5.0
KILLED = 137
"""128 + SIGKILL, as a shell says it."""

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # the same answer gets the same score
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
WEAKER = {
    "namespaces": "no namespaces: threads are bounded by memory alone",
    "landlock": "no Landlock: files of this host that the service may read can be read",
}


@dataclass(frozen=True, slots=True)
class SandboxRun:
    """What came of a program.

    Example:
        done = run("print(input())", "7\\n", SandboxLimits(seconds=2.0, memory_mib=256))
        assert (done.stdout, done.exit_code, done.stopped) == ("7\\n", 0, "")
    """

    stdout: str
    """UTF-8; what is not that is U+FFFD."""
    stderr: str
    exit_code: int
    """128 + the number of the signal that ended it."""
    stopped: str = ""
    """Which limit of this side ended it: "time" or "output"; empty where none did."""


def run(
    source: str, stdin: str, limits: SandboxLimits, host: SandboxHost | None = None
) -> SandboxRun:
    """`host`: None for the one that this runs on.

    Raises SandboxError when the host denies a layer that must be there.

    Call it from a thread that lives until it returns: the kernel ends the program with that
    thread. Nothing of the program outlives the call.
    """
    with _started(source, limits, host or this_host()) as (process, report):
        _check_layers(report)
        stdout, stderr, stopped = talk(process, stdin, time.monotonic() + limits.seconds)
        exit_code = KILLED if stopped else process.wait()
        exit_code = exit_code if exit_code >= 0 else 128 - exit_code
    return SandboxRun(stdout, stderr, exit_code, stopped)


def run_asking(asking: str, asked: str, limits: SandboxLimits) -> str:
    """Two programs, each alone in a sandbox; the output of each is the input of the other.

    Returns what `asking` writes to its standard error, which is out of reach of `asked`, until it
    ends or a limit ends it. Raises as `run` does.
    """
    host = this_host()
    questions, answers = os.pipe(), os.pipe()
    with ExitStack() as running:
        try:
            pipes = (questions[0], answers[1], subprocess.DEVNULL)
            _process, asked_report = running.enter_context(_started(asked, limits, host, *pipes))
            pipes = (answers[0], questions[1], subprocess.PIPE)
            process, report = running.enter_context(_started(asking, limits, host, *pipes))
        finally:
            for end in (*questions, *answers):
                os.close(end)
        _check_layers(asked_report)
        _check_layers(report)
        written, _, _ = talk(process, "", time.monotonic() + limits.seconds)
    return written


@contextmanager
def _started(
    source: str,
    limits: SandboxLimits,
    host: SandboxHost,
    stdin: int = PIPE,
    stdout: int = PIPE,
    stderr: int = PIPE,
) -> Generator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The process, which is killed at the end, and what it says of its layers."""
    status, status_fd = os.pipe()
    try:
        process = _start(make_job(source, limits, status_fd, host), stdin, stdout, stderr)
    except BaseException:
        os.close(status)
        raise
    finally:
        os.close(status_fd)
    with process, open(status, "rb") as report:
        try:
            yield process, report
        finally:
            process.kill()


def _start(
    job: dict[str, Any], stdin: int = PIPE, stdout: int = PIPE, stderr: int = PIPE
) -> subprocess.Popen[bytes]:
    with open(os.memfd_create("job"), "r+b") as file:
        marshal.dump(job, file)
        file.seek(0)
        options = ["-S", "-s", "-P", "-B", "-X", "utf8"]
        return subprocess.Popen(
            [sys.executable, *options, str(CHILD), str(file.fileno())],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            pass_fds=(file.fileno(), job["status_fd"]),
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )


def _check_layers(report: IO[bytes]) -> None:
    """Waits until the program is confined. Raises SandboxError where it is not."""
    if not select.select([report], [], [], START_SECONDS)[0]:
        raise SandboxError(f"no sandbox within {START_SECONDS:g} s; is this host overloaded?")
    line = report.read(select.PIPE_BUF)
    found = marshal.loads(line) if line else {"error": "it ended while it started"}
    if "error" in found:
        raise SandboxError(f"this host lets no program be confined: {found['error']}; {REMEDY}")
    _say_weaker(tuple(text for layer, text in WEAKER.items() if layer not in found["layers"]))


@cache
def _say_weaker(missing: tuple[str, ...]) -> None:
    """Once a process."""
    if missing:
        logger.warning("the sandbox of the rule code is weaker here: %s", "; ".join(missing))
