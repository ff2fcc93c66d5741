"""What a program that is started may do, on a host with namespaces and on one without."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trimaran.sandbox.processes import deny, wait_until
from trimaran.errors import InputError
from trimaran.sandbox import program as programs
from trimaran.sandbox.job import SandboxError
from trimaran.sandbox.program import Program, find_program

SYSTEM_PYTHON = "/usr/bin/python3"
ROOT = Path(__file__).parents[3]
TRY = """
import json, os, signal, socket, subprocess, sys
port, pid, secret = int(sys.argv[1]), int(sys.argv[2]), os.environ["SECRET"]
def outcome(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"
def send_data():
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", port + 1))
acts = {
    "its port": lambda: socket.create_connection(("127.0.0.1", port), 5).close(),
    "another port": lambda: socket.create_connection(("127.0.0.1", port + 1), 5).close(),
    "data before a connection": send_data,
    "a datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "a local socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "another protocol": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262),
    "a file elsewhere": lambda: open(secret).read(),
    "a list of files": lambda: os.listdir(os.path.dirname(secret)),
    "a new file elsewhere": lambda: open(secret + "2", "w"),
    "a signal": lambda: os.kill(pid, 0),
    "its own file": lambda: open("own", "w").write("x"),
    "its own folder": lambda: os.makedirs("a/b"),
    "another program": lambda: subprocess.run(["/bin/sh", "-c", "exit"], check=True),
}
print(json.dumps({name: outcome(act) for name, act in acts.items()}))
"""


@pytest.fixture(params=["namespaces", "no namespaces"])
def layers(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "no namespaces":
        deny(programs, "enter_namespaces", folder=tmp_path / "sandbox", monkeypatch=monkeypatch)
    return request.param


@pytest.fixture
def listening() -> Generator[int]:
    """A port of this host, and one above it, at which someone answers."""
    for first in range(30000, 32000, 2):
        try:
            with (
                socket.create_server(("127.0.0.1", first)) as one,
                socket.create_server(("127.0.0.1", first + 1)) as other,
            ):
                assert one and other
                yield first
                return
        except OSError:
            continue


def run(
    source: str,
    *words: str,
    python: str = "python",
    port: int = 1,
    network: bool = False,
    secret: str = "",
) -> tuple[int, str]:
    """Exit code and output of a Python program."""

    async def play() -> tuple[int, str]:
        spec = find_program((python, "-c", source, *words), network, "key")
        place = Path(tempfile.mkdtemp())  # where another user can reach it, too
        program = await Program.start(spec, place, {"SECRET": secret}, port, 1024)
        try:
            async with asyncio.timeout(30):
                return await program.wait(), program.output
        finally:
            await program.stop()
            assert not place.exists()

    return asyncio.run(play())


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("x")
    return path


def attempts(listening: int, secret: Path, **options: Any) -> dict[str, str]:
    """What became of each: "done", or an error's name."""
    words = (str(listening), str(os.getpid()))
    code, output = run(TRY, *words, secret=str(secret), **options)
    assert code == 0, output
    return json.loads(output)


def test_a_program_reaches_its_port_and_its_folder_and_nothing_else(
    layers: str, listening: int, secret: Path
) -> None:
    found = attempts(listening, secret, port=listening)
    assert {name for name, outcome in found.items() if outcome == "done"} == {
        *("its port", "its own file", "its own folder", "another program")
    }
    assert not secret.with_name("secret2").exists()


def test_the_operator_s_word_gives_a_program_the_network_and_no_files(
    layers: str, listening: int, secret: Path
) -> None:
    found = attempts(listening, secret, network=True)
    assert found["another port"] == found["a datagram"] == "done"
    assert found["a file elsewhere"] == found["a new file elsewhere"] == "PermissionError"


def test_nothing_outlives_a_program_that_ends_or_the_service_that_dies(
    layers: str, tmp_path: Path
) -> None:
    leave = "import subprocess; subprocess.Popen(['sleep', '1234'], start_new_session=True)"
    code, _ = run(leave + "; raise SystemExit(7)")
    assert code == 7
    assert not sleepers()
    stay = leave + "; import time; time.sleep(1234)"
    service = textwrap.dedent(f"""
        import asyncio
        from pathlib import Path
        from trimaran.sandbox import program as programs
        programs.CHILD = Path({str(programs.CHILD)!r})
        async def main():
            spec = programs.find_program(("python", "-c", {stay!r}), False, "key")
            place = Path({str(tmp_path)!r}, "own")
            place.mkdir()
            program = await programs.Program.start(spec, place, {{}}, 1, 1024)
            await asyncio.sleep(1000)
        asyncio.run(main())
    """)
    with subprocess.Popen([sys.executable, "-c", service], cwd=ROOT) as process:
        wait_until(lambda: bool(sleepers()))
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not sleepers() and not (tmp_path / "own").exists())


def test_memory_is_bounded() -> None:
    code, output = run("x = bytearray(2 << 30)")
    assert code == 1 and "MemoryError" in output


def test_processes_are_bounded_where_they_can_be_counted() -> None:
    """Root's are not counted, so the program must be one that another user can read."""
    fork = """if True:
        import os, time
        count = 0
        try:
            while os.fork():
                count += 1
            time.sleep(60)
        except BlockingIOError:
            print(count)
    """
    if os.geteuid() == 0 and not os.access(SYSTEM_PYTHON, os.X_OK):
        pytest.skip("there is no Python that all users can read")
    code, output = run(fork, python=SYSTEM_PYTHON)
    assert (code, int(output)) == (0, programs.MAX_PROCESSES - 3)


async def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"agent\.command: no-such: there is no such program"):
        find_program(("no-such",), False, "agent.command")
    text = tmp_path / "text"
    text.write_text("no program")
    text.chmod(0o755)
    spec = find_program((str(text),), False, "key")
    place = tmp_path / "own"
    place.mkdir()
    with pytest.raises(SandboxError, match="Exec format error"):
        await Program.start(spec, place, {}, 1, 1024)


def sleepers() -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if one.info["cmdline"] == ["sleep", "1234"]]
