"""The recipe of a dataset format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.extending.recipes import Recipe
from trimaran.config import DatasetSection
from trimaran.data.prompts import Dataset
from trimaran.errors import InputError
from trimaran.types import Message, Prompt


def test_a_file_with_the_suffix_is_read_by_the_package(
    follow: Callable[[str], Recipe], tmp_path: Path
) -> None:
    path = tmp_path / follow("A dataset format").run["data"]["train"]
    dataset = Dataset(DatasetSection(path=path, task="sums"))
    path.write_text('prompt,answer,level\n"1 + 2,\nplease?",3,easy\n2 + 2?,4,hard\n')
    first, second = dataset.texts()
    assert first == Prompt(
        "train.csv:2", (Message("user", "1 + 2,\nplease?"),), "sums", "3", {"level": "easy"}
    )
    assert (second.prompt_id, second.answer) == ("train.csv:3", "4")
    path.write_text('prompt,answer\n"1 + 2?,3\n')
    with pytest.raises(InputError, match=r"train\.csv: not CSV \(unexpected end of data\)"):
        list(Dataset(dataset.section).texts())
