"""Processes that need not import anything: copies of one that has.

A run's processes import torch and gRPC for two seconds each, and a fault driver starts thousands.
So a process that is about to start others (the driver, the manager, a launcher) first splits off a
*zygote*: a copy of itself that has imported everything, has one thread, and waits. From then on
what would be executed as `python -m commands.cli ARGUMENTS` is a copy of the zygote instead, with
the arguments, environment, working directory, output and session that it was to have. It becomes a
child of the one that asked, by the kernel's rule that an orphan falls to the nearest ancestor that
takes orphans. So signals, exit codes and the death of a parent are the same as ever.

What the kernel shows of a newborn (`/proc/<pid>/cmdline`, `/proc/<pid>/environ`) is its own, too.
Each leaves a note, a file named by its process id, by which the driver knows who is who.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36
COMMAND = (sys.executable, "-m", "commands.cli")
MAX_BYTES = 1 << 18
ROOM = 1 << 15
"""Bytes for what the kernel shows of a newborn: what the first process was executed with."""
ROOM_VARIABLE = "TRIMARAN_FAULTS_ROOM"
NOTES = "TRIMARAN_FAULTS_NOTES"
"""Environment variable: the folder of the notes."""

Live = Callable[[list[str]], NoReturn]
"""What a newborn does with the arguments of its command."""


@dataclass(frozen=True, slots=True)
class Request:
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    own_session: bool


def execute_with_room(arguments: list[str], environment: dict[str, str]) -> NoReturn:
    """The first process of all: its newborns' command lines and environments need room. It has one
    argument more than it is given."""
    command = [sys.executable, *arguments, " " * ROOM]
    os.execve(sys.executable, command, {**environment, ROOM_VARIABLE: " " * ROOM})


class Zygote:
    """The side that asks. Keep it as long as children may be wanted: the zygote ends with it."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._lock = end, threading.Lock()

    def bear(self, request: Request, outputs: tuple[int, ...]) -> int:
        """The process id of a child of this process, with these as its standard streams."""
        with self._lock:
            socket.send_fds(self._end, [json.dumps(asdict(request)).encode()], outputs)
            answer = self._end.recv(64)
        if not answer:
            raise OSError("the zygote has died")
        return int(answer)


def split_off(live: Live) -> Zygote:
    """Call it while this process has one thread. Returns here; each newborn goes on in `live`."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BYTES)
    gc.freeze()  # a collection would copy every page
    if os.fork():
        theirs.close()
        return Zygote(ours)
    ours.close()
    _show(["zygote"], dict(os.environ))
    while True:
        data, outputs, _, _ = socket.recv_fds(theirs, MAX_BYTES, 3)
        if not data:
            os._exit(0)
        pid = _fork_orphan()
        if not pid:
            theirs.close()
            request = Request(**json.loads(data))
            _become(request, outputs)
            live(request.arguments)
        for descriptor in outputs:
            os.close(descriptor)
        theirs.send(str(pid).encode())


def bear_from(zygote: Zygote) -> None:
    """From now on `subprocess` and asyncio make this project's processes with the zygote."""
    popen: Any = subprocess.Popen
    execute = popen._execute_child

    def execute_child(self: Any, args: Any, *rest: Any) -> None:
        if tuple(args[:3]) != COMMAND:
            return execute(self, args, *rest)
        (_, _, _, _, cwd, environment, _, _, _) = rest[:9]
        pipes = rest[9:15]
        own_session = rest[20]
        request = Request(
            list(map(str, args[3:])),
            dict(os.environ if environment is None else environment),
            str(cwd or os.getcwd()),
            own_session,
        )
        wanted = (pipes[0], pipes[3], pipes[5])
        outputs = tuple(fd if fd >= 0 else own for own, fd in enumerate(wanted))
        self.pid = zygote.bear(request, outputs)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    popen._execute_child = execute_child


def _fork_orphan() -> int:
    """As `os.fork`, but the child's parent is the nearest ancestor that takes orphans."""
    reading, writing = os.pipe()
    between = os.fork()
    if not between:
        os.close(reading)
        own = os.getpid()
        pid = os.fork()
        if pid:
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.close(writing)
        while os.getppid() == own:
            time.sleep(0.0005)
        return 0
    os.close(writing)
    os.waitpid(between, 0)
    pid = int(os.read(reading, 64))
    os.close(reading)
    return pid


def _become(request: Request, outputs: list[int]) -> None:
    for own, descriptor in enumerate(outputs):
        os.dup2(descriptor, own)
    os.closerange(3, 1 << 16)
    if request.own_session:
        os.setsid()
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
    _show([*COMMAND, *request.arguments], request.environment)
    sys.argv = ["trimaran", *request.arguments]
    # A reward worker would import the driver's main module again.
    sys.modules["__main__"] = types.ModuleType("__main__")
    note = Path(os.environ[NOTES]) / str(os.getpid())
    part = note.with_suffix(".part")
    part.write_text(json.dumps({"arguments": request.arguments, "time": time.time()}))
    part.rename(note)


def _show(command: list[str], environment: dict[str, str]) -> None:
    """Write over the memory that the kernel reads for /proc; nothing else uses it any more."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments, environ = ((int(fields[place]), int(fields[place + 1])) for place in (45, 47))
    words = b"\0".join(map(os.fsencode, command)) + b"\0"
    _fill(*arguments, words.rjust(arguments[1] - arguments[0]))
    variables = b"".join(
        os.fsencode(f"{k}={v}") + b"\0" for k, v in environment.items() if k != ROOM_VARIABLE
    )
    _fill(*environ, variables.ljust(environ[1] - environ[0], b"\0"))


def _fill(start: int, end: int, data: bytes) -> None:
    assert len(data) == end - start, (
        "too little room; was the driver started with `execute_with_room`?"
    )
    ctypes.memmove(start, data, len(data))
