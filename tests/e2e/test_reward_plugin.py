"""examples/reward_plugin as its README runs it: served, checked, and asked by the client of a run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commands.cli.main import main
from services.reward.outcome import Outcome, Value
from services.reward.plugins.calling.client import PluginJudge
from services.reward.terms import PluginSpec, make_terms
from tests.certificates import Authority
from trimaran.config import RunConfig, load_config
from trimaran.rewards import Sample
from trimaran.trust.allowed import Allowed

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "examples" / "reward_plugin"
TOKEN = "a-token-of-the-test"


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[str]:
    """The URL at which `trimaran reward serve` says that it serves."""
    command = [sys.executable, "-m", "commands.cli", "reward", "serve", "--port", "0"]
    with subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout
        try:
            line = server.stdout.readline()
            found = re.fullmatch(r"serving \S+ at (https?://127\.0\.0\.1:\d+)\n", line)
            assert found, line
            yield found[1]
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    bounds = ("--minimum", "0", "--maximum", "1", "--token-variable", "T_TOKEN")
    with serving(EXAMPLE, "brevity.py:brevity", *bounds, T_TOKEN=TOKEN) as url:
        yield url


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_BREVITY_TOKEN", TOKEN)


def test_it_passes_every_check(url: str, token: None, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["reward", "check", url, "--token-variable", "TRIMARAN_BREVITY_TOKEN"])
    out = capsys.readouterr().out
    assert code == 0, out
    assert out.splitlines()[-1] == "20 passed, 0 failed, 0 skipped"


def test_a_group_is_scored_through_it_as_a_run_does(url: str, token: None) -> None:
    config = load_config(
        EXAMPLE / "run.yaml",
        [
            f"reward.rules.brevity.plugin.url={url}",
            "reward.rules.brevity.plugin.token_variable=TRIMARAN_BREVITY_TOKEN",
        ],
    )
    outcomes = asyncio.run(_judge(config, url))
    assert outcomes == [
        Value(1.0, {"words": 1.0}),
        Value(0.5, {"words": 1.0}),
        Value(0.75, {"words": 5.0}),
        Value(0.0, {"words": 0.0}),
    ]


async def _judge(config: RunConfig, url: str) -> list[Outcome]:
    allowed = Allowed.from_entries([url])
    specs = [term.spec for term in make_terms(config, allowed)]
    plugins = [spec for spec in specs if isinstance(spec, PluginSpec)]
    texts = ("7", "8", "The sum is 7 indeed", "")
    group = [Sample(text=text, answer="7") for text in texts]
    async with asyncio.timeout(60), PluginJudge(plugins, allowed) as judge:
        return list(await judge.judge(plugins[0], group))


def test_with_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = Authority("own").write(tmp_path / "own")
    pair = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key))
    with serving(tmp_path, "exact_match", *pair) as url:
        assert url.startswith("https://")
        assert main(["reward", "check", url, "--ca-file", str(files.authorities), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["skipped"] == 1, report
        assert main(["reward", "check", url]) == 1
        assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().out
