import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from services.controller.datasets import load_prompts, prompt_at
from tests.extending.packages import install
from trimaran.config import DataSection
from trimaran.errors import InputError
from trimaran.types import Message, Prompt

ROWS = [
    {"prompt": "What is 1 + 2?", "answer": "3", "level": "easy"},
    {"prompt": [{"role": "user", "content": "2 + 2?"}], "answer": 4, "weights": [1, 2]},
]


def section(**values: object) -> DataSection:
    return DataSection.model_validate({"train": "unused", "task": "addition", **values})


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_jsonl_rows_become_prompts(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", ROWS)
    first, second = load_prompts(path, section(system="Be brief."))
    assert first == Prompt(
        "train.jsonl:1",
        (Message("system", "Be brief."), Message("user", "What is 1 + 2?")),
        "addition",
        "3",
        {"level": "easy"},
    )
    assert second.messages == (Message("user", "2 + 2?"),)
    assert (second.answer, second.extras) == ("4", {"weights": "[1, 2]"})


def read_csv(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from enumerate(csv.DictReader(file), start=2)


def test_a_format_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = {"trimaran.dataset_formats": {"csv": f"{__name__}:read_csv"}}
    monkeypatch.syspath_prepend(install(tmp_path / "packages", point))
    (tmp_path / "train.csv").write_text("prompt,answer,level\n1 + 2?,3,easy\n")
    assert load_prompts(tmp_path / "train.csv", section()) == [
        Prompt("train.csv:2", (Message("user", "1 + 2?"),), "addition", "3", {"level": "easy"})
    ]


def test_parquet_holds_the_same_prompts(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": row["answer"]}] for row in ({"answer": "a"},) * 2]
    table = pyarrow.table({"q": messages, "a": ["1", "2"], "n": [7, None]})
    parquet.write_table(table, tmp_path / "train.parquet")
    keys = section(prompt_key="q", answer_key="a")
    first, second = load_prompts(tmp_path / "train.parquet", keys)
    assert first == Prompt("train.parquet:1", (Message("user", "a"),), "addition", "1", {"n": "7"})
    assert second.extras == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "train.jsonl: holds no rows"),
        ("\n \n", "train.jsonl: holds no rows"),
        ('{"prompt": "a", "answer": "b"}\nnot json\n', "train.jsonl:2: not JSON"),
        ("[1]\n", "train.jsonl:1: a row must be an object"),
        ('{"prompt": "a", "answer": "b", "c": "\\ud800"}\n', "train.jsonl:1: 'c' holds half"),
        (
            '\n{"question": "a", "answer": "b"}\n',
            "train.jsonl:2: no 'prompt'; the row has 'question', 'answer'",
        ),
        ('{"prompt": "a", "solution": "b"}\n', r"train.jsonl:1: no 'answer'.*data\.answer_key"),
        ('{"prompt": "a", "answer": null}\n', "train.jsonl:1: no 'answer'"),
        ('{"prompt": 3, "answer": "b"}\n', "train.jsonl:1: 'prompt' must be a text or a list"),
        ('{"prompt": [], "answer": "b"}\n', "train.jsonl:1: 'prompt' must be"),
        ('{"prompt": [{"role": "user"}], "answer": "b"}\n', "train.jsonl:1: 'prompt' must be"),
    ],
)
def test_bad_rows_are_named_by_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_prompts(path, section())


def test_a_missing_file_and_one_that_is_not_parquet_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl: no such dataset"):
        load_prompts(tmp_path / "none.jsonl", section())
    (tmp_path / "x.parquet").write_text("{}")
    with pytest.raises(InputError, match=r"x\.parquet: not Parquet"):
        load_prompts(tmp_path / "x.parquet", section())


def test_each_epoch_meets_every_prompt_once_in_an_order_of_its_own() -> None:
    prompts = [Prompt(str(i), (Message("user", "?"),), "t", "a") for i in range(20)]
    order = [prompt_at(number, prompts, seed=3).prompt_id for number in range(60)]
    epochs = [order[start : start + 20] for start in (0, 20, 40)]
    assert all(Counter(epoch) == Counter(p.prompt_id for p in prompts) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert order[37] == prompt_at(37, prompts, seed=3).prompt_id
    assert order != [prompt_at(number, prompts, seed=4).prompt_id for number in range(60)]
    assert [prompt_at(n, prompts, 3, shuffle=False).prompt_id for n in (0, 19, 20)] == [
        "0",
        "19",
        "0",
    ]
