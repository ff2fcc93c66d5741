"""Runs foreign Python in a process of its own that may do next to nothing.

child.py gives up each right; this side starts it, feeds it, bounds its output and its
time, and ends it. docs/reward-code.md says what this stops and what it does not.
"""

from __future__ import annotations

import logging
import marshal
import os
import select
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import PIPE
from typing import IO

from services.reward.sandbox.job import KIB, MIB, REMEDY, Limits, SandboxError, make_job

logger = logging.getLogger(__name__)

CHILD = Path(__file__).with_name("child.py")
MAX_OUTPUT_BYTES = 16 * MIB
MAX_ERROR_BYTES = 64 * KIB
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
    "directory": "no directory of its own: programs cannot write files",
}


@dataclass(frozen=True, slots=True)
class Run:
    stdout: str
    """UTF-8; what is not that is U+FFFD."""
    stderr: str
    exit_code: int
    """128 + the number of the signal that ended it."""
    stopped: str = ""
    """Which limit of this side ended it: "time" or "output"; empty where none did."""


def run(source: str, stdin: str, limits: Limits) -> Run:
    """Raises SandboxError when the host denies a layer that must be there.

    Call it from a thread that lives until it returns: the kernel ends the program with that
    thread. Nothing of the program outlives the call.
    """
    with _started(source, limits) as (process, report):
        _check_layers(report)
        stdout, stderr, stopped = _talk(process, stdin, time.monotonic() + limits.seconds)
        exit_code = KILLED if stopped else process.wait()
        exit_code = exit_code if exit_code >= 0 else 128 - exit_code
    return Run(stdout, stderr, exit_code, stopped)


def run_asking(asking: str, asked: str, limits: Limits) -> str:
    """Two programs, each alone in a sandbox; the output of each is the input of the other.

    Returns what `asking` writes to its standard error, which is out of reach of `asked`, until it
    ends or a limit ends it. Raises as `run` does.
    """
    questions, answers = os.pipe(), os.pipe()
    with ExitStack() as running:
        try:
            pipes = (questions[0], answers[1], subprocess.DEVNULL)
            _process, asked_report = running.enter_context(_started(asked, limits, *pipes))
            pipes = (answers[0], questions[1], subprocess.PIPE)
            process, report = running.enter_context(_started(asking, limits, *pipes))
        finally:
            for end in (*questions, *answers):
                os.close(end)
        _check_layers(asked_report)
        _check_layers(report)
        written, _, _ = _talk(process, "", time.monotonic() + limits.seconds)
    return written


@contextmanager
def _started(
    source: str, limits: Limits, stdin: int = PIPE, stdout: int = PIPE, stderr: int = PIPE
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """The process, which is killed at the end, and what it says of its layers."""
    status, status_fd = os.pipe()
    try:
        process = _start(source, limits, status_fd, stdin, stdout, stderr)
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
    source: str,
    limits: Limits,
    status_fd: int,
    stdin: int = PIPE,
    stdout: int = PIPE,
    stderr: int = PIPE,
) -> subprocess.Popen[bytes]:
    with open(os.memfd_create("job"), "r+b") as job:
        marshal.dump(make_job(source, limits, status_fd), job)
        job.seek(0)
        options = ["-S", "-s", "-P", "-B", "-X", "utf8"]
        return subprocess.Popen(
            [sys.executable, *options, str(CHILD), str(job.fileno())],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            bufsize=0,
            pass_fds=(job.fileno(), status_fd),
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


def _talk(process: subprocess.Popen[bytes], stdin: str, deadline: float) -> tuple[str, str, str]:
    """Output, errors, and the limit that it went over, if any; it may then still run. Where
    standard output goes elsewhere, errors are the output."""
    assert process.stderr
    rest = memoryview(stdin.encode("utf-8", "replace"))
    output, errors = bytearray(), bytearray()
    stopped = ""
    with selectors.DefaultSelector() as selector:
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        if process.stdout:
            selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(
            process.stderr, selectors.EVENT_READ, errors if process.stdout else output
        )
        while selector.get_map() and not stopped:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if process.stdin and key.fileobj is process.stdin:
                    rest = _feed(key.fd, rest)
                    if not rest:
                        selector.unregister(key.fd)
                        process.stdin.close()
                elif piece := os.read(key.fd, 64 * KIB):
                    key.data.extend(piece)
                else:
                    selector.unregister(key.fd)
            del errors[MAX_ERROR_BYTES:]
            if len(output) > MAX_OUTPUT_BYTES:
                stopped = "output"
            elif time.monotonic() >= deadline:
                stopped = "time"
    if not stopped:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # it closed its output and goes on
            stopped = "time"
    return output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"), stopped


def _feed(fd: int, rest: memoryview) -> memoryview:
    try:
        return rest[os.write(fd, rest[: 64 * KIB]) :] if rest else rest
    except BrokenPipeError:  # it reads no more
        return rest[:0]
