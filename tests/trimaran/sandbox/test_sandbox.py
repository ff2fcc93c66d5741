"""Foreign programs as real processes. Nothing here touches a limit of the host: each program is
bounded by what it is started with."""

import marshal
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trimaran.sandbox.processes import deny, living, started_by, wait_until
from trimaran.sandbox import run as sandbox
from trimaran.sandbox.job import SandboxError, SandboxLimits, make_job, this_host
from trimaran.sandbox.run import SandboxRun, run, run_asking
from trimaran.sandbox.seccomp import AUDIT_ARCH, make_filter
from trimaran.sandbox.talk import MAX_OUTPUT_BYTES

ROOT = Path(__file__).resolve().parents[3]


def ran(
    source: str, stdin: str = "", seconds: float = 20.0, memory_mib: int = 1024, **host: Any
) -> SandboxRun:
    """`host`: in what it differs from this one."""
    return run(source, stdin, SandboxLimits(seconds, memory_mib), replace(this_host(), **host))


def printed(source: str, **options: Any) -> str:
    done = ran(source, **options)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def layers() -> list[str]:
    status, status_fd = os.pipe()
    process = sandbox._start(make_job("", SandboxLimits(), status_fd, this_host()))
    os.close(status_fd)
    with process, open(status, "rb") as report:
        return marshal.load(report)["layers"]


HAVE = layers() if sys.platform == "linux" else []


def needs(layer: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(layer not in HAVE, reason=f"this kernel grants no {layer} here")


# --- running


def test_input_and_output_are_utf_8_and_input_ends() -> None:
    source = "import sys\nprint(input() + 'ü', sys.stdin.read(), sys.stdin.read() == '')"
    assert printed(source, stdin="ä\n漢") == "äü 漢 True\n"


def test_exit_codes_and_errors_are_named() -> None:
    assert ran("raise SystemExit(3)").exit_code == 3
    assert ran("import os; os.abort()").exit_code > 128
    failed = ran("print(1, flush=True)\nx = (")
    assert (failed.stdout, failed.exit_code) == ("", 1) and "SyntaxError" in failed.stderr


def test_what_answers_commonly_use_works() -> None:
    source = """
import asyncio, datetime, random, sys, threading, zlib
import numpy
sys.setrecursionlimit(10**6)
def depth(n): return 1 + depth(n - 1) if n else 0
async def soon(): await asyncio.sleep(0); print("async")
def main(): print(depth(20_000), numpy.arange(4).sum())
threading.stack_size(1 << 26)
thread = threading.Thread(target=main)
thread.start()
thread.join()
asyncio.run(soon())
"""
    assert printed(source) == "20000 6\nasync\n"


# --- two programs


ASKS = "import os\nprint({question!r}, flush=True)\nos.write(2, input().encode())"
EVERYWHERE = """
import os
for fd in range(64):
    try: os.write(fd, b"forged\\n")
    except OSError: pass
"""


def test_each_of_two_programs_reads_what_the_other_writes() -> None:
    asked = "print(int(input()) + 1)"
    assert run_asking(ASKS.format(question="41"), asked, SandboxLimits(20.0)) == "42"


def test_the_asked_program_writes_nothing_but_answers() -> None:
    asking = ASKS.format(question="?")
    assert run_asking(asking, "input()" + EVERYWHERE, SandboxLimits(20.0)) == "forged"
    assert run_asking("import sys; sys.stdin.read()", EVERYWHERE, SandboxLimits(20.0)) == ""


# --- time, memory, sizes


@pytest.mark.parametrize("asked", ["while True: pass", "input(); input()", "while 1: print()"])
def test_two_programs_end_in_time_and_what_was_said_counts(asked: str) -> None:
    asking = "import os\nos.write(2, b'so far')\nwhile True: input()"
    before = set(started_by())
    assert run_asking(asking, asked, SandboxLimits(0.5)) == "so far"
    wait_until(lambda: set(started_by()) <= before)


def test_looping_and_closing_the_output_do_not_hold_the_worker() -> None:
    loops = ran("while True: pass", seconds=0.3)
    assert (loops.exit_code, loops.stopped) == (137, "time")
    closes = "import os, time; os.close(1); os.close(2); time.sleep(1000)"
    assert ran(closes, seconds=0.3).stopped == "time"
    by_processor = run("while True: pass", "", SandboxLimits(seconds=60, processor_seconds=1))
    assert (by_processor.exit_code, by_processor.stopped) == (137, "")


def test_memory_is_bounded() -> None:
    assert "MemoryError" in ran("x = bytearray(2 << 30)").stderr
    assert ran("x = []\nwhile True: x.append(bytearray(1 << 20))", memory_mib=256).exit_code != 0


# --- processes and signals


def test_printing_a_gigabyte_is_cut_off() -> None:
    done = ran("while True: print('x' * 1_000_000)")
    assert done.stopped == "output"
    assert len(done.stdout) < 2 * MAX_OUTPUT_BYTES
    assert len(ran("import sys\nsys.stderr.write('x' * 10_000_000)").stderr) <= 64 << 10


@pytest.mark.parametrize(
    "attempt",
    [
        "os.fork()",
        "os.execv(sys.executable, [sys.executable, '-c', ''])",
        "os.setsid()",
        "os.unshare(0x10000000) if hasattr(os, 'unshare') else refuse()",
        "ctypes.CDLL(None).ptrace(0, 0, 0, 0) and refuse()",
        "ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, None) and refuse()",
        "os.kill(1234567, 9)",
        "os.chmod('/', 0o777)",
        "os.setuid(0)",
    ],
)
def test_what_a_program_may_not_do(attempt: str) -> None:
    source = f"""
import ctypes, os, sys
def refuse(): raise OSError
try:
    {attempt}
except OSError:
    print("refused")
"""
    assert printed(source) == "refused\n"


def test_threads_are_bounded() -> None:
    if "namespaces" not in HAVE or (os.geteuid() == 0 and "nobody" not in HAVE):
        pytest.skip("here threads are bounded by memory alone")
    source = """
import threading, time
started = 0
try:
    for _ in range(500):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        started += 1
except RuntimeError:
    pass
print(started < 100, flush=True)
"""
    assert printed(source, memory_mib=8192) == "True\n"


def test_no_signal_reaches_the_parent() -> None:
    """This one does nothing to whatever else it may reach."""
    source = """
import os, signal
for target in (os.getppid(), 0, -1):
    try: os.kill(target, signal.SIGURG)
    except OSError: pass
print("sent")
"""
    came: list[int] = []
    handler = signal.signal(signal.SIGURG, lambda number, frame: came.append(number))
    try:
        assert printed(source) == "sent\n"
    finally:
        signal.signal(signal.SIGURG, handler)
    assert came == []


def test_a_program_ends_with_its_worker() -> None:
    code = (
        "import sys\nfrom trimaran.sandbox.run import run, SandboxLimits\n"
        "print('up', flush=True)\nrun('import time; time.sleep(1000)', '', SandboxLimits(1000))"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    with worker:
        assert worker.stdout and worker.stdout.readline() == b"up\n"
        expected = 2 if "namespaces" in HAVE else 1
        wait_until(lambda: len(started_by(worker.pid)) == expected)
        family = started_by(worker.pid)
        worker.send_signal(signal.SIGKILL)
    wait_until(lambda: not living(family))


def test_only_the_three_standard_files_are_open() -> None:
    held, other = os.pipe()
    os.set_inheritable(held, True)
    source = """
import os
def is_open(fd):
    try: return bool(os.fstat(fd))
    except OSError: return False
print([fd for fd in range(200) if is_open(fd)])
"""
    try:
        assert printed(source) == "[0, 1, 2]\n"
    finally:
        os.close(held)
        os.close(other)


# --- network, files, secrets


def test_no_socket_reaches_a_listener(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        local = socket.socket(socket.AF_UNIX)
        local.bind(str(tmp_path / "socket"))
        local.listen()
        os.chmod(tmp_path / "socket", 0o777)
        source = f"""
import socket
for family, address in (
    (socket.AF_INET, {server.getsockname()!r}),
    (socket.AF_UNIX, {str(tmp_path / "socket")!r}),
):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try: socket.socket(family, kind).connect(address)
        except OSError as error: print(type(error).__name__)
one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
try: one.sendto(b"x", {str(tmp_path / "socket")!r})
except OSError as error: print(type(error).__name__)
"""
        assert printed(source) == "PermissionError\n" * 5
        for listener in (server, local):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
        local.close()


def test_the_environment_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_TOKEN", "secret")
    source = """
import os
print(sorted(os.environ))
try: print("secret" in open(f"/proc/{os.getppid() or 1}/environ").read())
except OSError: pass
"""
    assert "TRIMARAN" not in printed(source) and "True" not in printed(source)


@needs("landlock")
def test_files_of_the_host_cannot_be_read_and_listed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    tmp_path.chmod(0o755)
    source = f"""
import os
for attempt in (
    lambda: open({str(secret)!r}),
    lambda: open("/etc/passwd"),
    lambda: open("/proc/self/mem"),
    lambda: open({str(sandbox.CHILD)!r}),
    lambda: os.listdir("/"),
):
    try: print(attempt())
    except OSError as error: print("refused")
"""
    assert printed(source) == "refused\n" * 5


def test_nothing_outside_its_directory_can_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    mine.chmod(0o666)
    source = f"""
import os
path = {str(mine)!r}
for attempt in (
    lambda: open(path, "w"),
    lambda: open(path, "r+"),
    lambda: os.truncate(path, 0),
    lambda: os.unlink(path),
    lambda: os.rename(path, path + "2"),
    lambda: os.symlink("x", path + "3"),
    lambda: os.mkdir(path + "4"),
    lambda: os.chmod(path, 0),
    lambda: os.utime(path, (0, 0)),
    lambda: open({str(ROOT / "new.py")!r}, "w"),
    lambda: open("new", "w"),
    lambda: os.kill(os.getpid(), 9),
):
    try: print(attempt())
    except OSError as error: print("refused")
"""
    assert printed(source) == "refused\n" * 12
    assert [p.name for p in tmp_path.iterdir()] == ["mine"] and mine.read_text() == "mine"


# --- hosts that deny a layer


def test_a_host_without_namespaces_still_confines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor another user."""
    denied = ("enter_namespaces", "leave_root")
    deny(sandbox, *denied, folder=tmp_path / "sandbox", monkeypatch=monkeypatch)
    sandbox._say_weaker.cache_clear()
    source = """
import os, socket
for attempt in (socket.socket, os.fork, lambda: os.kill(os.getppid(), 9), lambda: open('a', 'w')):
    try: print(attempt())
    except OSError: print('refused')
"""
    assert printed(source) == "refused\n" * 4
    assert "no namespaces" in caplog.text


def test_a_host_that_permits_no_filter_is_refused() -> None:
    with pytest.raises(SandboxError, match="sandbox_fusion"):
        ran("print(1)", filters=("00" * 8, "00" * 8))


def test_a_host_that_hides_no_environment_is_refused() -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(sandbox.CHILD.parent)!r})
import child
child.leave_root = child.enter_namespaces = lambda: False
child.restrict_files = lambda *_: 0
try: child.confine({{"parent": os.getppid(), "readable": []}})
except OSError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "may hold secrets" in done.stdout, done.stderr


# --- the filter, as the kernel would read it


def decide(program: bytes, arch: int, number: int, arguments: tuple[int, ...]) -> int:
    """The few instructions that are used, interpreted."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments)
    steps = [struct.unpack_from("<HBBI", program, i) for i in range(0, len(program), 8)]
    at = value = 0
    while True:
        code, if_true, if_false, k = steps[at]
        at += 1
        if code == 0x20:
            (value,) = struct.unpack_from("<I", data, k)
        elif code == 0x06:
            return k
        else:
            at += if_true if (value == k if code == 0x15 else value & k) else if_false


ALLOW = 0x7FFF0000
arguments = st.tuples(*[st.integers(0, 2**64 - 1)] * 6)


@pytest.mark.parametrize("files_guarded", [False, True])
@pytest.mark.parametrize("machine", AUDIT_ARCH)
@given(number=st.integers(0, 600), arguments=arguments)
def test_every_call_is_decided(machine: str, files_guarded: bool, number: int, arguments) -> None:
    program = make_filter(machine, files_guarded)
    assert len(program) // 8 < 4096  # BPF_MAXINSNS
    assert decide(program, AUDIT_ARCH[machine], number, arguments) in (
        ALLOW,
        *(0x00050000 | error for error in (1, 30, 38)),
    )
    assert decide(program, 0x40000003, number, arguments) == 0x80000000  # 32-bit calls


NAMES = ("socket", "connect", "execve", "ptrace", "clone", "openat")
NUMBERS = {
    "x86_64": dict(zip(NAMES, (41, 42, 59, 101, 56, 257), strict=True)),
    "aarch64": dict(zip(NAMES, (198, 203, 221, 117, 220, 56), strict=True)),
}


@pytest.mark.parametrize("machine", NUMBERS)
def test_the_filter_of_each_machine(machine: str) -> None:
    def allows(name: str, *arguments: int, files_guarded: bool = False) -> bool:
        padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
        program = make_filter(machine, files_guarded)
        return decide(program, AUDIT_ARCH[machine], NUMBERS[machine][name], padded) == ALLOW

    assert not any(map(allows, ("socket", "connect", "execve", "ptrace")))
    assert allows("clone", 0x00010000) and not allows("clone", 0x01200011)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, 3):
        assert not allows("openat", 0, 0, flags)
        assert allows("openat", 0, 0, flags, files_guarded=True)
    assert allows("openat", 0, 0, os.O_RDONLY | os.O_CLOEXEC)
