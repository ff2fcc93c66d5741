"""`trimaran reward`: what is refused at the command line, and how a server ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commands.cli.main import main

FUNCTION = """\
def score(sample, words: int = 3) -> float:
    return float(len(sample.text.split()) <= words)
"""
SERVE = [sys.executable, "-m", "commands.cli", "reward", "serve"]

Refused = Callable[..., str]


@pytest.fixture
def function(tmp_path: Path) -> str:
    (tmp_path / "rewards.py").write_text(FUNCTION)
    return f"{tmp_path / 'rewards.py'}:score"


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """refused(arguments…) -> the line; fails when a pool was made."""
    monkeypatch.setattr(
        "commands.cli.reward.reward_serve.WorkerPool", lambda *_: pytest.fail("started")
    )

    def run(*arguments: str) -> str:
        assert main(["reward", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return run


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere.py:score"], "nowhere.py: no such file"),
        (["a-b:score"], "a function is path/to/file.py:name or package.module:name"),
        (["json:*"], "json:*: name one function of it"),
        (["exact_mtch"], "unknown rule; did you mean exact_match?"),
        (["exact_match", "--minimum", "0"], "a built-in rule knows its bounds"),
        (["exact_match", "--option", "colour=red"], "--option.colour: unknown option"),
        (["json:dumps", "--option", "words"], "--option 'words': an option reads key=value"),
        (["json:dumps", "--option", "x=[1"], "not a plain YAML value"),
        (["json:dumps", "--option", "x=.nan"], "not a plain YAML value"),
        (["json:dumps", "--option", "x=2026-01-01"], "not a plain YAML value"),
        (["json:dumps", "--minimum", "1", "--maximum", "1"], "must be less than --maximum 1"),
        (["json:dumps", "--maximum", "nan"], "--maximum nan: must be a finite number"),
        (["json:dumps", "--port", "70000"], "--port 70000: must be at least 0 and at most 65535"),
        (["json:dumps", "--workers", "0"], "--workers 0: must be at least 1"),
        (["json:dumps", "--timeout", "0"], "--timeout 0: must be more than 0 seconds"),
        (["json:dumps", "--memory-mib", "1"], "--memory-mib 1: must be at least 256"),
        (["json:dumps", "--max-samples", "1001"], "at least 1 and at most 1000"),
        (["json:dumps", "--host", "0.0.0.0"], "give --token-variable NAME, or listen at 127.0"),
        (["json:dumps", "--token-variable", "NO_SUCH_ONE"], "NO_SUCH_ONE: that environment"),
        (["json:dumps", "--tls-cert", "a.pem"], "give both or neither"),
        (["json:dumps", "--tls-cert", "no.pem", "--tls-key", "no.pem"], "give two PEM files"),
        (["json:dumps", "--host", "no.such.host.invalid"], "--token-variable"),
    ],
)
def test_what_cannot_be_served(refused: Refused, arguments: list[str], text: str) -> None:
    assert text in refused("serve", *arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["127.0.0.1:8700"], "a host is http://host:port or https://host:port"),
        (["http://127.0.0.1:port"], "Port could not be cast"),
        (["http://127.0.0.1:1", "--timeout", "0"], "--timeout 0: must be more than 0 seconds"),
        (["http://127.0.0.1:1", "--ca-file", "no.pem"], "--ca-file no.pem"),
        (["http://127.0.0.1:1", "--token-variable", "NO_SUCH_ONE"], "holds no token"),
    ],
)
def test_what_cannot_be_checked(refused: Refused, arguments: list[str], text: str) -> None:
    assert text in refused("check", *arguments)


def test_a_port_in_use(refused: Refused, function: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        message = refused("serve", function, "--port", port)
    assert f":{port}: cannot be listened on (Address already in use" in message


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("import no_such_module\ndef score(sample): return 1.0", "no_such_module"),
        ("def score(sample, *, wrods=1): return 1.0", "words"),
    ],
)
def test_a_function_that_cannot_be_loaded(tmp_path: Path, source: str, text: str) -> None:
    (tmp_path / "rewards.py").write_text(source)
    command = [*SERVE, "rewards.py:score", "--port", "0", "--option", "words=2", "--workers", "1"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr
    assert text in ended.stderr


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_order_and_takes_its_processes_along(
    function: str, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [*SERVE, function, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout
        assert server.stderr
        assert server.stdout.readline().startswith(f"serving {function} at http://127.0.0.1:")
        server.send_signal(number)
        assert server.wait(60) == 0
        # Its processes hold the pipe: that it ends says that none of them is left.
        assert server.stderr.read() == ""
