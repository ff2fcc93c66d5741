"""`trimaran view`: which runs it shows, where, and its end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from commands.cli.main import main
from commands.cli.serve.view import PORTS, free_address, path_of
from tests.manager.viewing.folders import config_of, make_run


def test_runs_are_named_by_folder_or_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(Path("runs/addition"), config_of(tmp_path)).folder
    for text in (str(run), "addition", "latest"):
        assert path_of(text) == run
    assert path_of("runs") == path_of(None) == Path("runs")
    assert main(["view", "subtraction"]) == 2
    assert main(["view", "runs", "--http", "192.0.2.1:0"]) == 2


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        _, port = free_address(range(first, first + len(PORTS))).rsplit(":", 1)
    assert int(port) > first


@pytest.mark.e2e
def test_it_says_where_it_listens_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "addition", config_of(tmp_path))
    command = [sys.executable, "-m", "commands.cli", "view", "runs", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=-1, text=True) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert line.startswith(f"{tmp_path}/runs: read only at http://127.0.0.1:")
            [run] = httpx.get(f"{line.split()[-1]}/v1/runs").json()["runs"]
            assert run["run_id"] == "addition"
            process.send_signal(signal.SIGINT)
            assert (process.wait(30), process.stdout.read()) == (0, "")
        finally:
            process.kill()
