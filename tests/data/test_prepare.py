import json
import os
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.data.pictures import png
from trimaran.config import DatasetSection
from trimaran.data.files import MAX_FILE_BYTES
from trimaran.data.make_row import CountTokens, PreparePlan, make_row
from trimaran.data.prepare import CardTree, card_path, is_current, prepare
from trimaran.data.prompts import Dataset, ImageSizes
from trimaran.data.recipes import RECIPES, mapped
from trimaran.data.sources import SourceRow, find_sources
from trimaran.data.templates import TEMPLATES
from trimaran.errors import InputError
from trimaran.types import Message


def words(made: PreparePlan) -> CountTokens:
    """A tokenizer of white space."""

    def count(messages: Sequence[Message]) -> int:
        return sum(len(message.text.split()) for message in messages)

    return count


def plan(name: str, **values: Any) -> PreparePlan:
    recipe = RECIPES[name]
    return PreparePlan(recipe, TEMPLATES[recipe.template], unique=recipe.unique, **values)


def prepared(folder: Path, rows: Sequence[Any], made: PreparePlan, **values: Any) -> CardTree:
    source = folder / "train.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = find_sources(str(source))
    return prepare(found, made, folder / "out" / "train.parquet", words, **values)


def texts(folder: Path, name: str = "train") -> list[str]:
    section = DatasetSection(path=folder / "out" / f"{name}.parquet")
    return [prompt.messages[-1].text for prompt in Dataset(section).texts()]


def gsm8k(number: int) -> dict[str, Any]:
    return {"question": f"What is {number}?", "answer": f"It is.\n#### {number}", "level": number}


def test_a_prepared_file_is_what_a_run_reads(tmp_path: Path) -> None:
    rows = [gsm8k(n) for n in range(1200)]
    card = prepared(tmp_path, rows, plan("gsm8k", keep=("level", "none")))
    first, *_, last = Dataset(DatasetSection(path=tmp_path / "out/train.parquet")).texts()
    suffix = ' Let\'s think step by step and output the final answer after "####".'
    assert first.messages == (Message("user", f"What is 0?{suffix}"),)
    assert (last.answer, last.extras) == ("1199", {"data_source": "openai/gsm8k", "level": "1199"})
    assert card["rows"] == {"read": 1200, "written": 1200, "held_out": 0}
    assert card["absent"] == ["none"]
    assert parquet.ParquetFile(tmp_path / "out/train.parquet").num_row_groups == 3
    assert not list(tmp_path.glob("out/*.partial"))


def test_the_card_names_source_counts_and_dropped_rows(tmp_path: Path) -> None:
    rows = [gsm8k(1), {"question": "a"}, gsm8k(1), {"answer": "#### 2"}, {"question": "b"}]
    card = prepared(tmp_path, rows, replace(plan("gsm8k"), unique=True))
    assert card == json.loads((tmp_path / "out" / "train.card.json").read_text())
    assert card["rows"] == {"read": 5, "written": 1, "held_out": 0}
    assert "absent" not in card
    assert card["dropped"] == [
        {"reason": "no answer", "rows": 2, "first": ["train.jsonl:2", "train.jsonl:5"]},
        {"reason": "a repetition", "rows": 1, "first": ["train.jsonl:3"]},
        {"reason": "no prompt", "rows": 1, "first": ["train.jsonl:4"]},
    ]
    (source,) = card["source"]
    assert source["file"] == "train.jsonl"
    assert len(source["sha256"]) == len(card["files"]["train.parquet"]) == 64


def test_what_is_current_is_known_by_source_plan_and_file(tmp_path: Path) -> None:
    made = plan("gsm8k")
    prepared(tmp_path, [gsm8k(1)], made)
    path = tmp_path / "out" / "train.parquet"
    (source,) = find_sources(str(tmp_path / "train.jsonl"))
    assert is_current(source, made, path)
    assert not is_current(source, replace(made, system="Be brief."), path)
    card = card_path(path).read_text()
    for text in ("", "[]", '{"files": 3}'):
        card_path(path).write_text(text)
        assert not is_current(source, made, path)
    card_path(path).write_text(card)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert not is_current(source, made, path)
    path.write_bytes(data)
    source.files[0].write_text(json.dumps(gsm8k(2)))
    assert not is_current(source, made, path)


def test_long_prompts_are_dropped_and_lengths_are_named(tmp_path: Path) -> None:
    rows = [{"instruction": "a " * length, "output": "1"} for length in (1, 9, 4, 5)]
    card = prepared(tmp_path, rows, plan("alpaca", max_tokens=5, model=tmp_path))
    assert card["tokens"] == {"min": 1, "median": 4, "max": 5}
    (dropped,) = card["dropped"]
    assert dropped["reason"] == "a prompt of more than 5 tokens"
    assert dropped["first"] == ["train.jsonl:2"]


def test_systems_thinking_and_templates(tmp_path: Path) -> None:
    rows = [{"instruction": text, "output": "1"} for text in "AB"]
    rows[0]["system"] = "own"

    def messages(**values: Any) -> list[list[tuple[str, str]]]:
        prepared(tmp_path, rows, replace(plan("alpaca"), **values))
        found = Dataset(DatasetSection(path=tmp_path / "out" / "train.parquet")).texts()
        return [[(m.role, m.text) for m in prompt.messages] for prompt in found]

    own = [("system", "own"), ("user", "A")]
    assert messages() == [own, [("user", "B")]]
    qwen = [("system", "You are a helpful assistant."), ("user", "B")]
    assert messages(template=TEMPLATES["qwen"]) == [own, qwen]
    assert messages(system="S") == [[("system", "S"), ("user", text)] for text in "AB"]
    assert messages(thinking=False)[1] == [("user", "B")]


@pytest.mark.parametrize("workers", [1, 2])
def test_held_out_rows_are_drawn_by_the_seed_and_in_one_file_only(
    tmp_path: Path, workers: int
) -> None:
    """The order of the rows does not depend on the workers."""
    rows = [{"instruction": str(n), "output": "1"} for n in range(200)]
    card = prepared(tmp_path, rows, plan("alpaca", hold_out=20, seed=7), workers=workers)
    chosen = set(random.Random("hold-out:7:train").sample(range(200), 20))
    assert texts(tmp_path, "train-held-out") == [str(n) for n in range(200) if n in chosen]
    assert texts(tmp_path) == [str(n) for n in range(200) if n not in chosen]
    assert set(card["files"]) == {"train.parquet", "train-held-out.parquet"}
    assert card["rows"] == {"read": 200, "written": 180, "held_out": 20}
    with pytest.raises(InputError, match="--hold-out 200: train has 200 rows"):
        prepared(tmp_path, rows, plan("alpaca", hold_out=200))


def test_images_are_brought_into_the_file_and_bad_ones_dropped(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(png(280, 280))
    (tmp_path / "images" / "bad.png").write_bytes(png(280, 280)[:500])
    config = {"vision_config": {"patch_size": 14, "spatial_merge_size": 2}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows: list[dict[str, Any]] = [
        {"question": "How wide? <image1>", "answer": "280", "image": f"images/{name}.png"}
        for name in ("1", "bad", "none")
    ]
    rows.append({"question": "<image> <image>", "answer": "1", "image": "images/1.png"})
    rows.append({"question": "<image>", "answer": "1", "image": None})
    rows.append({"question": "Without?", "answer": "1", "image": None})
    card = prepared(tmp_path, rows, plan("geo3k", model=tmp_path))
    reasons = [dropped["reason"] for dropped in card["dropped"]]
    assert sorted(reasons)[0] == "<image> without an image (--map images= where it is text)"
    assert sorted(reasons)[1].startswith("an image: 500 bytes are no whole image")
    assert sorted(reasons)[2].startswith("an image: there is no file of this name")
    assert sorted(reasons)[3] == "other than one <image> an image"
    assert card["tokens"]["max"] - card["tokens"]["min"] > 90  # 100 places, and a word for one
    (tmp_path / "images" / "1.png").unlink()
    section = DatasetSection(path=tmp_path / "out" / "train.parquet", image_key="images")
    dataset = Dataset(section, ImageSizes(1, 10**6, 28))
    assert [len(dataset[n].messages[0].images) for n in range(2)] == [1, 0]
    assert dataset[0].messages[0].text.startswith("How wide? <image> You FIRST think")


@pytest.mark.parametrize("hold_out", [0, 2])
def test_a_file_has_the_columns_that_its_rows_have(tmp_path: Path, hold_out: int) -> None:
    """An empty column of images would make a dataset of text one that a model for text cannot take."""

    def columns(rows: list[dict[str, Any]]) -> list[list[str]]:
        card = prepared(tmp_path, rows, plan("chat", hold_out=hold_out, keep=("asked",)))
        files = [parquet.ParquetFile(tmp_path / "out" / name) for name in card["files"]]
        held_out = [file.metadata.num_rows for file in files][1:]
        assert files[0].metadata.num_rows == len(rows) - sum(held_out)
        return [file.schema_arrow.names for file in files]

    (tmp_path / "1.png").write_bytes(png(280, 280))
    text: dict[str, Any] = {"prompt": [{"role": "user", "content": "Q"}], "answer": "1"}
    for more in ({}, {"data_source": "openai/gsm8k"}, {"images": ["1.png"]}):
        wanted = ["prompt", "answer", *more, "asked"]
        assert columns([text, text, text, text | more]) == [wanted] * (1 + bool(hold_out))


def test_rows_are_held_out_of_a_source_that_is_larger_than_memory(tmp_path: Path) -> None:
    rows = ({"instruction": f"{n} " * 2000, "output": "1"} for n in range(1000, 7000))
    with (tmp_path / "train.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (source,) = find_sources(str(tmp_path / "train.jsonl"))
    size = source.files[0].stat().st_size
    tracemalloc.start()
    try:
        prepare(source, plan("alpaca", hold_out=500), tmp_path / "out" / "train.parquet", words)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 60_000_000
    assert peak < size / 2
    assert len([*(tmp_path / "out").iterdir()]) == 3


@pytest.mark.parametrize("name", ["gsm8k", "geo3k"])
@pytest.mark.parametrize("mark", ["<image>", "<image1>"])
def test_marked_images_that_no_field_reads_end_the_preparation(name: str, mark: str) -> None:
    """Whether the recipe has no field of images, or one of other columns."""
    values = {"question": f"{mark}How wide?", "answer": "#### 1", "picture": "a/1.JPG", "n": 1}
    row = SourceRow("a.jsonl:7", values, Path())
    made = plan(name)
    reported = "^a.jsonl:7: its text marks an image, .* 'picture'; give --map images=picture, or"
    with pytest.raises(InputError, match=reported):
        make_row(row, made, None)
    as_text = replace(made, recipe=replace(made.recipe, keys=mapped(made.recipe, ["images="])))
    assert make_row(row, as_text, None).columns is not None
    others = SourceRow("a.jsonl:8", {**values, "picture": "none"}, Path())
    dropped = name == "geo3k" and mark == "<image>"
    assert (make_row(others, made, None).columns is None) == dropped


def test_no_row_brings_a_file_from_outside_of_the_sources_folder(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "secret.png").write_bytes(png(280, 280))
    (source / "link.png").symlink_to(tmp_path / "secret.png")
    large = source / "large.png"
    large.write_bytes(png(280, 280))
    os.truncate(large, MAX_FILE_BYTES + 1)
    for name, reason in {
        str(tmp_path / "secret.png"): "lies outside",
        "../secret.png": "lies outside",
        "link.png": "lies outside",
        "large.png": "more than 256 MiB",
        "a\0b": "null byte",
    }.items():
        values = {"question": "<image>", "answer": "1", "image": name}
        made = make_row(SourceRow("a:1", values, source), plan("geo3k"), None)
        assert made.columns is None
        assert reason in made.reason


def test_a_source_of_which_nothing_is_left_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train: no row of 2 is left \(2 no prompt\); --map"):
        prepared(tmp_path, [{"q": "a", "output": "1"}] * 2, plan("alpaca"))
    assert not (tmp_path / "out" / "train.parquet").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_column_that_was_named_by_hand_is_in_some_row(tmp_path: Path, workers: int) -> None:
    """Without the question of each row its further input alone would be the prompt."""
    rows = [{"task": "a", "input": "b", "output": "1"}, {"input": "c", "output": "2"}]

    def made_by(column: str) -> PreparePlan:
        keys = {**RECIPES["alpaca"].keys, "prompt": [column]}
        recipe = replace(RECIPES["alpaca"], keys=keys)
        return replace(plan("alpaca", mapped=(column,)), recipe=recipe)

    prepared(tmp_path, rows, made_by("task"), workers=workers)
    assert texts(tmp_path) == ["a\nb", "c"]
    (tmp_path / "out" / "train.parquet").unlink()
    with pytest.raises(InputError, match="no row of train has tsak; the last one has input, outp"):
        prepared(tmp_path, rows, made_by("tsak"), workers=workers)
    assert list((tmp_path / "out").glob("*.parquet*")) == []
