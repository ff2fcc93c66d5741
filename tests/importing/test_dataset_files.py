"""MindSpeed-RL's files of configs/datasets become the words of `trimaran data prepare`."""

import shlex
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from commands.cli.main import main
from commands.importing.conversion import convert
from commands.importing.dataset_files import DATASET_FILES, prepare_command
from trimaran.config import DatasetSection
from trimaran.data.prompts import Dataset

DEEPSCALER: dict[str, Any] = {
    "input": "raw/deepscaler.json",
    "tokenizer_name_or_path": "models/qwen",
    "output_prefix": "data/deepscaler",
    "handler_name": "R1AlpacaStyleInstructionHandler",
    "prompt_type": "qwen_r1",
    "map_keys.prompt": "problem",
    "map_keys.query": "",
    "map_keys.response": "answer",
    "map_keys.system": "",
    "dataset_additional_keys": ["labels"],
}
"""The keys of configs/datasets/deepscaler.yaml, April 2026."""
MATH_17K = DEEPSCALER | {
    "input": "raw/dapo.parquet",
    "output_prefix": "data/math",
    "handler_name": "Math17kAlpacaStyleInstructionHandler",
    "prompt_type": "empty",
    "map_keys.prompt": "prompt",
    "map_keys.response": "reward_model",
}
"""The same of math_17k.yaml."""


KNOBS: dict[str, Any] = {
    "input": "owner/set",
    "workers": 8,
    "seq_length": 2048,
    "prompt_type": "qwen3",
    "map_keys.prompt": "q",
    "map_keys.system": "s",
    "dataset_additional_keys": ["labels", "level"],
}


@pytest.mark.parametrize(
    ("knobs", "options"),
    [
        ({}, "--from raw/deepscaler.json -o data/deepscaler.parquet"),
        (
            KNOBS,
            "--from owner/set -o data/deepscaler --split train --template qwen3 --map prompt=q --map system=s"
            " --keep level --model models/qwen --max-prompt-tokens 2047 --workers 8",
        ),
    ],
)
def test_what_a_recipe_does_not_have_becomes_options(knobs: dict[str, Any], options: str) -> None:
    command = prepare_command(convert(DATASET_FILES, DEEPSCALER | knobs).tree)
    assert command == f"trimaran data prepare deepscaler {options}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("handler_name", "AlpacaStylePairwiseHandler"),
        ("prompt_type", "qwen_retool"),
        ("input", "rows.txt"),
    ],
)
def test_what_cannot_be_prepared_so_is_refused(key: str, value: Any) -> None:
    assert list(convert(DATASET_FILES, DEEPSCALER | {key: value}).having("refused")) == [key]


def test_a_template_that_differs_is_named() -> None:
    assert convert(DATASET_FILES, MATH_17K).having("noted").keys() == {"prompt_type"}


@pytest.mark.parametrize("given", [DEEPSCALER, MATH_17K])
def test_the_command_that_an_import_prints_prepares_the_rows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("raw").mkdir()
    Path("raw/deepscaler.json").write_text('[{"problem": "1 + 1?", "answer": "2"}]')
    row = {"prompt": [{"role": "user", "content": "1 + 1?"}], "reward_model": {"ground_truth": "2"}}
    parquet.write_table(pyarrow.Table.from_pylist([row]), "raw/dapo.parquet")
    columns = {key.partition(".")[2]: text for key, text in given.items() if "." in key}
    tree = {key: value for key, value in given.items() if "." not in key}
    Path("theirs.yaml").write_text(yaml.safe_dump({**tree, "map_keys": columns}))
    assert main(["import", "mindspeed-rl", "theirs.yaml"]) == 0
    printed = capsys.readouterr().out.splitlines()[-1].partition("here that is: trimaran ")[2]
    assert main(shlex.split(printed)) == 0
    [prompt] = Dataset(DatasetSection(path=Path(f"{given['output_prefix']}.parquet"))).texts()
    assert prompt.messages[-1].text.endswith("1 + 1?")
    assert prompt.answer == "2"
    assert main(["train", "theirs.yaml"]) == 2
    assert "go on with: trimaran import mindspeed-rl theirs.yaml" in capsys.readouterr().err
    assert main(["import", "mindspeed-rl", "theirs.yaml", "nonsense=1"]) == 2
    assert "unknown  nonsense" in capsys.readouterr().out
