"""The process that workers are forked from: one thread, in which the run's code is imported once.

    python -m services.environment.workers.nursery FD        FD: of the service

It forks when the service sends it the other end of a connection, and reports who has ended and why. A fork
costs milliseconds, and what is imported is shared. Every process that user code starts ends here: a worker
adopts what its children leave, and this process what workers leave and kills it. When the service is gone,
however it went, all of them are killed and this process ends.

    ◀─ {"do": "prepare", …}       ─▶ {"threads": 1}, or {"refused": "…"}
    ◀─ {"do": "start", "number": 3} with a connection    ─▶ {"started": 3, "pid": 4711}
    ◀─ {"do": "kill", "number": 3}                       ─▶ {"ended": 3, "cause": "SIGKILL"}
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from services.environment.loading.load import LoadSpec, preload
from services.environment.workers.worker import work
from trimaran.errors import InputError
from trimaran.host.lifetime import die_with_parent, kill_group, outlive_parent

PACKET_BYTES = 1 << 16
END_SECONDS = 5.0
"""For processes that were just killed to be gone."""
MIB = 1 << 20
PR_SET_CHILD_SUBREAPER = 36


class Nursery:
    """Example: Nursery(socket.socket(fileno=3)).run()"""

    def __init__(self, service: socket.socket) -> None:
        self._service = service
        self._settings: dict[str, Any] = {}
        self._numbers: dict[int, int] = {}
        """Of each worker's process id."""

    def run(self) -> None:
        """Until the service hangs up."""
        adopt_orphans()
        woken, waking = socket.socketpair()
        for end in (woken, waking):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._service, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if woken in ready:
                    with suppress(BlockingIOError):
                        woken.recv(PACKET_BYTES)
                    self._reap()
                if self._service in ready and not self._obey():
                    return

    def end(self) -> None:
        """Kills all workers and what they have started."""
        signal.set_wakeup_fd(-1)
        for pid in self._numbers:
            kill_group(pid)
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            for pid in children():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.01)
            except ChildProcessError:
                return

    def _obey(self) -> bool:
        """False when the service is gone."""
        try:
            packet, fds, _, _ = socket.recv_fds(self._service, PACKET_BYTES, 1)
        except ConnectionResetError:
            return False
        if not packet:
            return False
        order = json.loads(packet)
        match order["do"]:
            case "prepare":
                self._prepare(order)
            case "start":
                self._start(order["number"], fds[0])
            case _:
                for pid, number in self._numbers.items():
                    if number == order["number"]:
                        kill_group(pid)
        return True

    def _prepare(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        if settings["preloads"]:
            try:
                preload(_spec_of(settings))
            except InputError as error:
                self._tell({"refused": str(error)})
                return
        outlive_parent()  # from now on it is seen when the service hangs up
        gc.collect()
        gc.freeze()  # what is imported stays shared, and is not searched for garbage
        self._tell({"threads": len(os.listdir("/proc/self/task"))})

    def _start(self, number: int, fd: int) -> None:
        pid = os.fork()
        if not pid:
            self._become_worker(fd)
        os.close(fd)
        self._numbers[pid] = number
        self._tell({"started": number, "pid": pid})

    def _become_worker(self, fd: int) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()  # what user code starts is killed with it
            die_with_parent(os.getppid(), signal.SIGKILL)
            adopt_orphans()
            self._service.close()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            room = self._settings["memory_mib"] * MIB
            resource.setrlimit(resource.RLIMIT_AS, (room, room))
            connection = socket.socket(fileno=fd)
            spec, max_chars = _spec_of(self._settings), self._settings["max_chars"]
            work(connection, spec, self._settings["memory_mib"], max_chars)
            code = 0
        except BrokenPipeError:
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        """Reports who has ended, and kills what they left."""
        while (pid := _ended_child()) is not None:
            if pid in self._numbers:
                kill_group(pid)  # before its number is free
            _, status = os.waitpid(pid, 0)
            number = self._numbers.pop(pid, None)
            for orphan in children():
                if orphan not in self._numbers:
                    with suppress(ProcessLookupError):
                        os.kill(orphan, signal.SIGKILL)
            if number is not None:
                cause = cause_of(os.waitstatus_to_exitcode(status))
                self._tell({"ended": number, "cause": cause})

    def _tell(self, words: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # then the next read says so
            self._service.send(json.dumps(words).encode())


def _ended_child() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def adopt_orphans() -> None:
    """What descends from this process and loses its parent becomes its child, and not init's."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")


def children() -> list[int]:
    """Of this process, which has one thread."""
    with open("/proc/thread-self/children") as file:
        return list(map(int, file.read().split()))


def cause_of(code: int) -> str:
    """Example: cause_of(-9) == "SIGKILL" """
    if code < 0:
        with suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _spec_of(settings: dict[str, Any]) -> LoadSpec:
    return LoadSpec(**settings["spec"])


def main() -> None:
    parent, fd = int(sys.argv[1]), int(sys.argv[2])
    # Until the run's code is imported, which may hang.
    die_with_parent(parent, signal.SIGKILL)
    os.dup2(2, 1)  # what user code prints goes to the log
    sys.stdout = sys.stderr
    nursery = Nursery(socket.socket(fileno=fd))
    try:
        nursery.run()
    finally:
        nursery.end()


if __name__ == "__main__":
    main()
