"""`trimaran environment`: what is refused at the command line, and a server that is served and checked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Ran

CALCULATOR = Path("examples/calculator/calculator.py").resolve()
TOKEN = {"TRIMARAN_TEST_TOKEN": "a-token"}
COMMAND = [sys.executable, "-m", "commands.cli", "environment"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serve", "nowhere.py:World"], "nowhere.py: no such file"),
        (["serve", "json:dumps", "json:loads"], "give --tools for several functions"),
        (["serve", "json:dumps", "--max-episodes", "0"], "--max-episodes: Input should be"),
        (["serve", "json:dumps", "--port", "70000"], "at most 65535"),
        (["serve", "json:dumps", "--host", "0.0.0.0"], "give --token-variable NAME"),
        (["serve", "json:dumps", "--option", "x"], "an option reads key=value"),
        (["check", "http://127.0.0.1:9", "--row", '{"x": 1}'], "not the contract's row: x: "),
        (["check", "127.0.0.1:9"], "a host is http://host:port"),
    ],
)
def test_what_is_refused(arguments: list[str], text: str, ran: Ran) -> None:
    out, err = ran(["environment", *arguments], 2)
    assert text in err
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "what", [[f"{CALCULATOR}:Calculator"], ["--tools", "tools.py:add", "--max-episodes", "4"]]
)
def test_it_serves_what_its_own_kit_passes(
    what: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = 'def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n'
    (tmp_path / "tools.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, **TOKEN}
    token = ["--token-variable", *TOKEN]
    server = subprocess.Popen(
        [*COMMAND, "serve", *what, "--port", "0", *token],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout
        url = server.stdout.readline().split()[-1]
        done = subprocess.run(
            [*COMMAND, "check", url, *token],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout
        assert "0 failed, 0 skipped" in done.stdout
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.wait()
