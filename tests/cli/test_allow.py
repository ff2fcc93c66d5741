"""`--allow`: a run names only what the operator allowed, from any folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from commands.cli.main import main
from tests.cli.conftest import WriteRun
from trimaran.trust.allowed import ALLOW_VARIABLE, Allowed

Train = Callable[..., int]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Train:
    """train(arguments…) -> exit code; 0 where the run would have been started."""
    monkeypatch.setenv(ALLOW_VARIABLE, "")  # main() adds to it; undone afterwards
    monkeypatch.setattr("commands.cli.train.train._launch", lambda *_: 0)
    return lambda *arguments: main(["train", *map(str, arguments)])


def run_with_function(write_run: WriteRun, folder: Path) -> Path:
    (folder / "mine.py").write_text("def f(sample): return 1.0")
    return write_run(reward={"rules": {"mine": {"function": "mine.py:f"}}})


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("error: ")


def test_nothing_is_allowed_unless_it_is_said(
    write_run: WriteRun, train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_with_function(write_run, tmp_path)
    assert train(path) == 2
    error = one_error(capsys)
    assert error.startswith("reward.rules.mine.function: ")
    remedy = error.partition("start with --allow ")[2].split()[0]
    assert train(path, "--allow", "other:f", "--allow", remedy) == 0
    assert train(path, "--allow", "mine.py") == 2
    assert "'mine.py': a function is path/to/file.py:name" in one_error(capsys)


def test_the_environment_allows_as_well_and_services_inherit_all_of_it(
    write_run: WriteRun, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run_with_function(write_run, tmp_path)
    monkeypatch.setenv(ALLOW_VARIABLE, " mine.py:f\n\nhttp://one:1")
    assert train(path, "--allow", "http://two:2") == 0
    monkeypatch.chdir("/")
    assert Allowed.from_environment() == Allowed.from_entries(
        [f"{tmp_path}/mine.py:f", "http://one:1", "http://two:2"]
    )


def test_the_reward_service_asks_again(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setenv(ALLOW_VARIABLE, "")
    monkeypatch.setattr(
        "commands.cli.serve.serve.serve", lambda *_: seen.append(os.environ[ALLOW_VARIABLE]) or 0
    )
    arguments = ["--config", str(write_run()), "--run-folder", str(tmp_path)]
    assert main(["serve", "reward", *arguments, "--allow", "mine.py:f"]) == 0
    assert seen == [f"{tmp_path}/mine.py:f"]


@pytest.mark.parametrize("place", [0, 2])
def test_overrides_may_stand_before_and_behind_it(
    write_run: WriteRun, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setenv(ALLOW_VARIABLE, "")
    seen: list[int] = []
    monkeypatch.setattr(
        "commands.cli.train.train._launch",
        lambda config, *_: seen.append(config.run.seed) or 0,
    )
    arguments = ["--allow", "http://one:1"]
    arguments.insert(place, "run.seed=7")
    assert main(["train", str(write_run()), *arguments, "run.steps=3"]) == 0
    assert seen == [7]
