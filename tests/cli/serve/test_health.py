"""`trimaran health`: one line, and 0 or 1, about whatever this container serves."""

from __future__ import annotations

import asyncio
import http.server
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commands.cli.main import main
from tests.certificates import Authority
from tests.cli.conftest import Ran
from tests.trimaran.wire.fakes import FakeReward, reward_service
from trimaran.trust.access import Trust, new_token
from trimaran.wire import health_note, rpc
from trimaran.wire.health_note import VARIABLE, Notes, read_notes


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that an image names."""
    path = tmp_path / "health.json"
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.setattr(health_note, "own", Notes())  # as it was, afterwards
    return path


def claim(name: str) -> Notes:
    """As a service does it; the environment here stays as it is, for `trimaran health`."""
    return Notes.claim(name, dict(os.environ))


async def ask(*arguments: str) -> int:
    """Beside the server's event loop, as another process would."""
    return await asyncio.to_thread(main, ["health", *arguments])


def test_who_waits_in_good_time_is_well(note: Path, ran: Ran) -> None:
    notes = claim("rollout-0")
    notes.wait("waits for a run", seconds=60)
    assert ran(["health"]).out.startswith("rollout-0: waits for a run until ")
    notes.wait("waits for a run", seconds=-1)
    assert main(["health"]) == 1


def test_a_service_of_no_container_has_its_note_beside_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_note, "own", Notes())  # as it was, afterwards
    notes = Notes.claim("trainer-0", {}, tmp_path)

    def doing() -> list[str]:
        return [note.doing for note in read_notes(tmp_path)]

    notes.wait("starts", seconds=60)
    assert doing() == ["starts"]
    seen = [doing() for _ in notes.counted("loads", range(40), 40, "tensors of the model")]
    assert seen == 40 * [["loads 0 of 40 tensors of the model"]]  # within a second
    assert doing() == [""]
    notes.serve("127.0.0.1:7001")
    notes.say("writes")
    [note] = read_notes(tmp_path)
    assert (note.address, note.doing) == ("127.0.0.1:7001", "writes")
    shutil.rmtree(tmp_path / "logs")  # as a disk that takes nothing
    notes.say("")


async def test_a_service_is_well_while_it_serves(
    note: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim("reward")
    server = rpc.Server("127.0.0.1:0", [reward_service(FakeReward())])
    await server.start()
    assert await ask() == 0
    assert capsys.readouterr().out == f"reward: serves at {server.address}\n"
    assert await ask("reward") == 0
    assert await ask("rollout") == 2  # another kind has noted itself
    await server.stop()
    assert await ask("--timeout", "1") == 1


@pytest.mark.parametrize("address", ["127.0.0.1:0", "0.0.0.0:0"])
async def test_a_service_with_tls_is_asked_on_loopback_with_its_own_files(
    address: str, note: Path, tmp_path: Path
) -> None:
    """There is a certificate for loopback."""
    claim("reward")
    trust = Trust(new_token(), Authority("ours").write(tmp_path / "tls"))
    server = rpc.Server(address, [reward_service(FakeReward())], trust=trust)
    await server.start()
    try:
        assert await ask() == 0
    finally:
        await server.stop()


def test_who_takes_connections_and_says_nothing_is_not_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert main(["health", "reward", "--address", address, "--timeout", "0.5"]) == 1
        assert time.monotonic() - began < 30


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def https_server(files_folder: Path) -> Iterator[str]:
    files = Authority("ours").write(files_folder)
    assert files.certificate and files.key
    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_https_is_asked_whatever_name_its_certificate_has(tmp_path: Path) -> None:
    with https_server(tmp_path / "tls") as url:
        assert main(["health", "manager", "--address", f"{url}/healthz"]) == 0
        assert main(["health", "manager", "--address", f"{url}/other"]) == 1


def test_a_manager_that_is_frozen_is_not_well(note: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "commands.cli", "up", "--folder", str(tmp_path / "runs")]
    command += ["--address", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as manager:
        try:
            deadline = time.monotonic() + 60
            while not (note.exists() and "/healthz" in note.read_text()):
                assert time.monotonic() < deadline and manager.poll() is None
                time.sleep(0.1)
            assert main(["health", "manager"]) == 0
            manager.send_signal(signal.SIGSTOP)
            assert main(["health", "manager", "--timeout", "1"]) == 1
            manager.send_signal(signal.SIGCONT)
            manager.terminate()
            assert manager.wait(30) == 0
        finally:
            manager.kill()
