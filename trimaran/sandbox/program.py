"""Programs in any language, each with a folder of its own, one port that it reaches, and nothing else.

program_child.py gives up each right; this side starts it, keeps the end of what the program prints, and ends
it. docs/agents.md says what this stops and what it does not.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import marshal
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import PIPE
from typing import Any

from trimaran.errors import InputError
from trimaran.sandbox.job import MIB, SandboxError
from trimaran.sandbox.seccomp import AUDIT_ARCH, make_network_filter

CHILD = Path(__file__).with_name("program_child.py")
START_SECONDS = 10.0
STOP_SECONDS = 5.0
OUTPUT_BYTES = 16 << 10
"""Of what a program prints, from its end."""
MAX_PROCESSES = 256
"""And threads, of one program, where the kernel lets them be counted for it alone."""
MAX_OPEN_FILES = 1024
MAX_FILE_MIB = 1024

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ANY_PORT = 1
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
    *("/etc/hosts", "/etc/ssl", "/etc/ca-certificates", "/etc/pki", "/etc/mime.types"),
    *("/dev/urandom", "/dev/random", "/dev/zero"),
)
"""What any program may read."""
NETWORK = ("/etc/resolv.conf", "/run/systemd/resolve", "/etc/gai.conf", "/etc/services")
WEAKER = {
    "namespaces": "no namespaces: they reach their port on every host",
    "processes": "as root or without namespaces: how many processes they start is not bounded",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """What is started. Example: find_program(("python", "agent.py"), network=False, key="agent.command")"""

    command: tuple[str, ...]
    """With absolute paths."""
    readable: tuple[str, ...]
    """Beside what any program may read."""
    network: bool = False
    """Whether it may reach all that this host reaches."""


def find_program(command: Sequence[str], network: bool, key: str) -> ProgramSpec:
    """`python` is the one that runs us. Files and folders that words name by an absolute path can be read.
    Raises InputError that names the key."""
    name, *words = command
    found = sys.executable if name == "python" else shutil.which(name, path=_search_path())
    if found is None:
        raise InputError(f"{key}: {name}: there is no such program; name its path")
    found = os.path.abspath(found)
    readable = [found, *(word for word in words if os.path.isabs(word) and os.path.exists(word))]
    if os.path.basename(found).startswith("python"):
        readable += _python_folders(found, key)
    return ProgramSpec((found, *words), tuple(readable), network)


async def check_host(network: bool, key: str) -> None:
    """Raises InputError that names the key where this host cannot confine a program."""
    spec = find_program(("true",), network, key)
    folder = Path(tempfile.mkdtemp())
    try:
        program = await Program.start(spec, folder, {}, ANY_PORT, memory_mib=1024)
        await program.stop()
    except SandboxError as error:
        raise InputError(
            f"{key}: {error}; run the environment service on Linux 6.7 or newer, or start the programs elsewhere"
            " (leave the command out)"
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _search_path() -> str:
    return os.pathsep.join((os.environ.get("PATH", ""), PATH))


@cache
def _python_folders(python: str, key: str) -> tuple[str, ...]:
    """Where its modules are: of the environment, and of the installation below it."""
    source = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
    command = [python, "-I", "-c", source]
    try:
        done = subprocess.run(command, capture_output=True, timeout=START_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"{key}: {python} does not run: {error}") from None
    return tuple(json.loads(done.stdout))


class Program:
    """One that runs. It ends with this process, whatever it has started itself.

    Example:
        program = await Program.start(spec, folder, {"HOME": str(folder)}, port=8000, memory_mib=4096)
        code = await program.wait()
        await program.stop()
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        layers: tuple[str, ...],
        listener: socket.socket | None,
    ) -> None:
        self.layers = layers
        """Those of the kernel that act around it."""
        self.listener = listener
        """At its port, where it has a network of its own: to be answered, and closed, by who started it."""
        self._process, self._output = process, bytearray()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls,
        spec: ProgramSpec,
        folder: Path,
        environment: Mapping[str, str],
        port: int,
        memory_mib: int,
    ) -> Program:
        """`folder`: its own, which is removed when it ends. `port`: of this host, which it alone reaches.

        Raises SandboxError where the host cannot confine it, or it cannot be started.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                job = _job(spec, folder, environment, port, memory_mib, theirs.fileno())
                process = await _spawn(job, theirs.fileno())
            ours.setblocking(False)
            program = cls(process, (), None)
            try:
                async with asyncio.timeout(START_SECONDS):
                    written, program.listener = await _receive(ours)
            except TimeoutError:
                written = marshal.dumps({"error": f"not within {START_SECONDS:g} s"})
            except BaseException:
                await program.stop()
                raise
        report = _read_report(written)
        if "error" in report:
            await program.stop()
            raise SandboxError(f"the program cannot be confined and started: {report['error']}")
        program.layers = tuple(report["layers"])
        _say_weaker(tuple(text for layer, text in WEAKER.items() if layer not in program.layers))
        return program

    async def wait(self) -> int:
        """Its exit code; 128 + the number of the signal that ended it."""
        code = await self._process.wait()
        await asyncio.shield(self._reading)
        return code if code >= 0 else 128 - code

    async def stop(self) -> None:
        """Ends all of it. Idempotent."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self.listener:
            self.listener.close()
        self._reading.cancel()

    @property
    def output(self) -> str:
        """The end of what it has printed."""
        return self._output.decode("utf-8", "replace").strip()

    async def _read(self) -> None:
        assert self._process.stdout
        while piece := await self._process.stdout.read(OUTPUT_BYTES):
            self._output += piece
            del self._output[:-OUTPUT_BYTES]


def _job(
    spec: ProgramSpec,
    folder: Path,
    environment: Mapping[str, str],
    port: int,
    memory_mib: int,
    status_fd: int,
) -> dict[str, Any]:
    readable = (*SYSTEM, *spec.readable, *(NETWORK if spec.network else ()))
    return {
        "parent": os.getpid(),
        "command": list(spec.command),
        "environment": {"PATH": PATH, **environment},
        "folder": str(folder),
        "needed": list(spec.readable),
        "readable": list(dict.fromkeys(readable)),
        "network": spec.network,
        "port": port,
        "status_fd": status_fd,
        "filter": b"" if spec.network else _filter(),
        "max_processes": MAX_PROCESSES,
        "limits": {
            # Not RLIMIT_AS: engines of other languages reserve far more than they use.
            "RLIMIT_DATA": memory_mib * MIB,
            "RLIMIT_FSIZE": MAX_FILE_MIB * MIB,
            "RLIMIT_NOFILE": MAX_OPEN_FILES,
            "RLIMIT_CORE": 0,
        },
    }


@cache
def _filter() -> bytes:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in AUDIT_ARCH:
        raise SandboxError(f"no confined programs for {sys.platform} on {machine}")
    return make_network_filter(machine)


async def _spawn(job: dict[str, Any], status_fd: int) -> asyncio.subprocess.Process:
    file = os.memfd_create("job")
    try:
        os.write(file, marshal.dumps(job))
        os.lseek(file, 0, os.SEEK_SET)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", str(CHILD), str(file)),
            stdin=subprocess.DEVNULL,
            stdout=PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(file, status_fd),
            env={},
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(file)


def _read_report(written: bytes) -> dict[str, Any]:
    """The last word counts: a program whose layers act may not begin all the same."""
    report: dict[str, Any] = {"error": "it ended while it started"}
    stream = io.BytesIO(written)
    while stream.tell() < len(written):
        report = marshal.load(stream)
    return report


async def _receive(ours: socket.socket) -> tuple[bytes, socket.socket | None]:
    """What is written until the program itself begins, and the listener, where one comes."""
    written, listener = b"", None
    while True:
        await _readable(ours)
        piece, received, _, _ = socket.recv_fds(ours, 1 << 16, 1)
        if received:
            listener = socket.socket(fileno=received[0])
            piece = piece[1:]  # what carried it
        elif not piece:
            return written, listener
        written += piece


async def _readable(ours: socket.socket) -> None:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(ours, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(ours)


@cache
def _say_weaker(missing: tuple[str, ...]) -> None:
    """Once a process."""
    if missing:
        logger.warning("programs are less confined here: %s", "; ".join(missing))
