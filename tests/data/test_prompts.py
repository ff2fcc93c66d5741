import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tests.data.pictures import png, size_of
from trimaran.config import DataSection, DatasetSection
from trimaran.data.prompts import (
    Dataset,
    ImageSizes,
    UnusableImageError,
    open_datasets,
    without_images,
)
from trimaran.errors import InputError
from trimaran.types import Message, Prompt

ROWS: list[dict[str, Any]] = [
    {"prompt": "What is 1 + 2?", "answer": "3", "level": "easy"},
    {"prompt": [{"role": "user", "content": "2 + 2?"}], "answer": 4, "weights": [1, 2]},
]
SIZES = ImageSizes(min_pixels=28 * 28, max_pixels=280 * 280, multiple=28)


def dataset(path: Path, sizes: ImageSizes | None = None, **values: Any) -> Dataset:
    return Dataset(DatasetSection.model_validate({"path": path, **values}), sizes)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_jsonl_rows_become_prompts(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", ROWS)
    rows = dataset(path, system="Be brief.", task="addition")
    first, second = rows.texts()
    messages = Message("system", "Be brief."), Message("user", "What is 1 + 2?")
    assert first == Prompt("train.jsonl:1", messages, "addition", "3", {"level": "easy"})
    assert second.messages == (Message("system", "Be brief."), Message("user", "2 + 2?"))
    assert (second.answer, second.extras) == ("4", {"weights": "[1, 2]"})
    assert [rows[place] for place in range(len(rows))] == [first, second]


def test_a_row_keeps_a_system_message_of_its_own(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1?"}]
    path = write_jsonl(tmp_path / "train.jsonl", [{"prompt": messages, "answer": 2}])
    [prompt] = dataset(path, system="Be brief.").texts()
    assert prompt.messages == (Message("system", "Add."), Message("user", "1 + 1?"))


def test_parquet_holds_the_same_prompts(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": row["answer"]}] for row in ({"answer": "a"},) * 2]
    table = pyarrow.table({"q": messages, "a": ["1", "2"], "n": [7, None]})
    parquet.write_table(table, tmp_path / "train.parquet")
    rows = dataset(tmp_path / "train.parquet", prompt_key="q", answer_key="a")
    first, second = rows.texts()
    assert first == Prompt("train.parquet:1", (Message("user", "a"),), "default", "1", {"n": "7"})
    assert second.extras == {}
    assert rows[1] == second


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a", "answer": "b"}\nnot json\n', "train.jsonl:2: not JSON"),
        ("[1]\n", "train.jsonl:1: a row must be an object"),
        ('{"prompt": "a", "answer": "b", "c": "\\ud800"}\n', "train.jsonl:1: 'c' holds half"),
        ('\n{"q": "a", "answer": "b"}\n', "train.jsonl:2: no 'prompt'; the row has 'q', 'answer'"),
        ('{"prompt": "a", "answer": null}\n', r"train.jsonl:1: no 'answer'.*data\.answer_key"),
        ('{"prompt": 3, "answer": "b"}\n', "train.jsonl:1: 'prompt' must be a text or a list"),
        ('{"prompt": [], "answer": "b"}\n', "train.jsonl:1: 'prompt' must be"),
        ('{"prompt": [{"role": "user"}], "answer": "b"}\n', "train.jsonl:1: 'prompt' must be"),
    ],
)
def test_bad_rows_are_named_by_their_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        list(dataset(path).texts())


def test_two_files_of_one_name_have_different_prompts(tmp_path: Path) -> None:
    sections: list[DatasetSection] = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = write_jsonl(tmp_path / folder / "train.jsonl", ROWS[:1])
        sections.append(DatasetSection(path=path))
    one, other = open_datasets(sections, None)
    assert one[0].prompt_id == f"{tmp_path}/a/train.jsonl:1"
    assert other[0].prompt_id == f"{tmp_path}/b/train.jsonl:1"
    (alone,) = open_datasets(sections[:1], None)
    assert alone[0].prompt_id == "train.jsonl:1"


@pytest.mark.parametrize("form", ["bytes", "struct", "struct of a path", "path", "list"])
def test_images_are_read_from_each_form_of_a_column(tmp_path: Path, form: str) -> None:
    picture = png(100, 60)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(picture)
    value: Any = {
        "bytes": picture,
        "struct": {"bytes": picture, "path": None},
        "struct of a path": {"bytes": None, "path": "images/1.png"},
        "path": "images/1.png",
        "list": [{"bytes": picture, "path": "x"}, {"bytes": picture, "path": "y"}],
    }[form]
    table = pyarrow.table({"prompt": ["How wide?"], "answer": ["100"], "images": [value]})
    parquet.write_table(table, tmp_path / "a.parquet")
    rows = dataset(tmp_path / "a.parquet", SIZES, image_key="images")
    (message,) = rows[0].messages
    number = 2 if form == "list" else 1
    assert message.text == "<image>" * number + "How wide?"
    assert [size_of(image) for image in message.images] == [(112, 56)] * number
    assert rows[0].extras == {}
    (without,) = rows.texts()
    assert without == without_images(rows[0])


def test_images_stand_where_the_row_says_also_in_several_messages(tmp_path: Path) -> None:
    for width in (28, 56, 84):
        (tmp_path / f"{width}.png").write_bytes(png(width, 28))
    messages = [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": "<image> or <image>?"},
        {"role": "assistant", "content": "The second."},
        {"role": "user", "content": "And <image>?"},
    ]
    row = {"prompt": messages, "answer": "1", "image": ["28.png", "56.png", "84.png"]}
    path = write_jsonl(tmp_path / "a.jsonl", [row, {**row, "prompt": "none", "image": None}])
    rows = dataset(path, SIZES, image_key="image")
    widths = [[size_of(image)[0] for image in message.images] for message in rows[0].messages]
    assert widths == [[], [28, 56], [], [84]]
    assert rows[1].messages == (Message("user", "none"),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a"}, "no 'image'; the row has 'answer', 'prompt'"),
        ({"prompt": "<image>", "image": []}, "0 images, and <image> stands 1 times"),
        ({"prompt": "<image>", "image": ["a.png", "a.png"]}, "2 images, and <image> stands 1"),
        ({"prompt": "<image> <image>", "image": "a.png"}, "1 images, and <image> stands 2"),
        ({"prompt": "a", "image": 7}, "an image is bytes, a path or {bytes, path}, not int"),
        ({"prompt": "a", "image": {"bytes": None, "path": None}}, "an image is bytes"),
        ({"prompt": "a", "image": {"path": "a.png", "max_pixels": 9}}, "max_pixels of its own"),
        ({"prompt": "<video>a", "image": [], "videos": ["a.mp4"]}, "<video> marks a video, and no"),
    ],
)
def test_rows_whose_images_do_not_fit_are_named_before_a_run(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"answer": "1", **row}])
    with pytest.raises(InputError) as caught:
        list(dataset(path, image_key="image").texts())
    assert str(caught.value).startswith(f"{path}:1: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "value", ["a/1.PNG", ["a/1.jpg"], b"\x89PNG", {"bytes": None, "path": "1.webp"}]
)
@pytest.mark.parametrize("sizes", [SIZES, None])
def test_a_mark_beside_images_that_no_key_names_is_refused_whatever_the_model(
    tmp_path: Path, value: Any, sizes: ImageSizes | None
) -> None:
    messages = [{"role": "user", "content": "<image>How wide?"}]
    table = pyarrow.table({"prompt": [messages] * 2, "answer": ["1"] * 2, "seen": [None, value]})
    parquet.write_table(table, path := tmp_path / "a.parquet")
    rows = dataset(path, sizes)
    for read in (lambda: rows[1], lambda: list(replace(rows, sizes=None).texts())):
        reported = f"^{path}:2: <image> stands in its text, .* 'seen'; set data.image_key=seen, or"
        with pytest.raises(InputError, match=reported):
            read()


def test_sizes_are_there_where_the_model_or_a_dataset_has_images(tmp_path: Path) -> None:
    data = DataSection.model_validate({"train": "a.jsonl"})
    assert ImageSizes.of(data, tmp_path) is None
    config = {"vision_config": {"patch_size": 14, "spatial_merge_size": 2}}
    for family, multiple in (("qwen2", None), ("qwen3_vl", 28)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **config}))
        found = ImageSizes.of(data, tmp_path)
        assert (found and found.multiple) == multiple


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../secret.png", "lies outside of the dataset's folder"),
        ("/etc/hostname", "lies outside of the dataset's folder"),
        ("link.png", "lies outside of the dataset's folder"),
        ("https://a.example/b.png", "there is no file"),
        ("loop.png", "there is no file"),
        ("folder", "there is no file"),
        ("text.png", "7 bytes are no image"),
    ],
)
def test_an_image_that_cannot_be_used_names_row_and_file(
    tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "secret.png").write_bytes(png(28, 28))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "data" / "loop.png").symlink_to("loop.png")
    (tmp_path / "data" / "folder").mkdir()
    (tmp_path / "data" / "text.png").write_bytes(b"nothing")
    rows = [{"prompt": "a", "answer": "1", "image": name}]
    path = write_jsonl(tmp_path / "data" / "a.jsonl", rows)
    found = dataset(path, SIZES, image_key="image")
    with pytest.raises(UnusableImageError) as caught:
        found[0]
    assert str(caught.value).startswith(f"{path}:1: image 1 ({name}): ")
    assert message in str(caught.value)
    assert caught.value.prompt.prompt_id == "a.jsonl:1"
    assert [type(entry) for entry in found.entries()] == [UnusableImageError]


def test_columns_of_bytes_are_no_extras(tmp_path: Path) -> None:
    columns = {
        "raw": b"\0",
        "preview": {"bytes": b"\0", "path": "x"},
        "views": [{"bytes": b"\0"}],
        "level": {"easy": [1]},
    }
    table = pyarrow.Table.from_pylist([{"prompt": "a", "answer": "1", **columns}])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert dataset(tmp_path / "a.parquet")[0].extras == {"level": '{"easy": [1]}'}
