"""`trimaran experts` on a run's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.cli.main import main
from tests.cli.conftest import WriteRun
from trimaran.config import load_config
from trimaran.run.folder import make_run_folder, write_config
from trimaran.telemetry.expert_loads import ExpertLoadsWriter
from trimaran.types import ExpertLoads


@pytest.fixture
def folder(write_run: WriteRun) -> Path:
    """A run of a model with two layers of four experts, after three steps."""
    config = load_config(write_run())
    folder = make_run_folder(config)
    write_config(folder, config)
    writer = ExpertLoadsWriter(folder)
    for step in (1, 2, 3):
        layers = ExpertLoads(0, (4, 4, 4, 4)), ExpertLoads(1, (1000 * step, 0, 1000 * step, 0))
        writer.write(step, layers)
    writer.close()
    return folder


def rows(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Of the table, behind the line that says what it is of and the headings."""
    return [line.split() for line in capsys.readouterr().out.splitlines()[2:]]


def test_the_newest_step_has_a_row_a_layer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experts"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == f"{folder.name}, step 3: packed tokens by expert"
    assert main(["experts", str(folder)]) == 0
    assert rows(capsys) == [
        ["0", "16", "0", "1.00", "0", "1.00", "0.000"],
        ["1", "6,000", "0", "2.00", "1", "0.00", "1.000"],
    ]


@pytest.mark.parametrize(
    ("steps", "tokens"), [("2:3", "5,000"), ("2:", "5,000"), (":2", "3,000"), ("2", "2,000")]
)
def test_steps_are_added_up_for_every_expert_of_a_layer(
    folder: Path, capsys: pytest.CaptureFixture[str], steps: str, tokens: str
) -> None:
    assert main(["experts", "latest", "--steps", steps, "--layer", "1"]) == 0
    assert rows(capsys) == [
        ["0", tokens, "2.00"],
        ["1", "0", "0.00"],
        ["2", tokens, "2.00"],
        ["3", "0", "0.00"],
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--layer", "2"], "--layer 2: there are layers 0 to 1"),
        (["--steps", "7:"], "has no loads of experts of them"),
        (["--steps", "3:2"], "--steps 3:2: ends before it begins"),
        (["--steps", "a:b"], "--steps a:b: give 5:10, 5:, :10 or 5"),
        (["nowhere"], "nowhere: not a run"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_input_is_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["experts", *arguments]) == 2
    assert words in capsys.readouterr().err
