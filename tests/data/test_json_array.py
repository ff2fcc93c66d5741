"""Arrays of JSON, read item by item."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimaran.data import json_array
from trimaran.data.json_array import read_array
from trimaran.errors import InputError

ITEMS: list[Any] = [
    {"a": 'brackets ] } and \\ " inside', "b": [1, {"c": None}]},
    "ü\u2028",
    -12.5e3,
    123456,
    [],
    {},
    True,
]


@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_items_are_those_of_the_whole_file(
    tmp_path: Path, chunk: int, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "CHUNK", chunk)
    path = tmp_path / "a.json"
    for items in (ITEMS, ITEMS[::-1], ITEMS[3:4], []):
        for text in (json.dumps(items, indent=indent), json.dumps(items, ensure_ascii=False)):
            path.write_text(f"\ufeff \n{text}\n", "utf-8")
            assert list(read_array(path)) == list(enumerate(items, 1))


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", ":1: not JSON (the file ends in the array)"),
        ("[1, ", ":2: not JSON (an item is missing)"),
        ('[1, "a', ":2: not JSON (Unterminated string starting at)"),
        ("[1, 2", ":2: not JSON (the file ends in the array)"),
        ("[1 2]", ":1: not JSON (',' or ']' is missing, found '2')"),
        ("[1, {2}]", ":2: not JSON (Expecting property name enclosed in double quotes)"),
        ("[1,]", ":2: not JSON (Expecting value)"),
        ("[{}", ":1: not JSON ("),
        ("[1] x", ":1: not JSON ('x' stands behind the array)"),
        ("[" * 100_000, ":1: not JSON ("),
    ],
)
def test_a_broken_item_is_named(
    tmp_path: Path, text: str, message: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "CHUNK", chunk)
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        list(read_array(path))
    assert str(caught.value).startswith(f"{path}{message}")


def test_what_is_no_utf8_and_what_never_ends_are_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'["\xff"]')
    with pytest.raises(InputError, match=r"a\.json:1: not JSON \('utf-8' codec can't decode"):
        list(read_array(path))
    monkeypatch.setattr(json_array, "CHUNK", 4)
    monkeypatch.setattr(json_array, "MOST_CHARACTERS", 64)
    path.write_text(json.dumps(["short", "x" * 500]))
    with pytest.raises(
        InputError, match=r"a\.json:2: not JSON \(no item ends within 64 characters"
    ):
        list(read_array(path))


def test_an_array_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be cut off while its first items are read."""
    monkeypatch.setattr(json_array, "CHUNK", 1024)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(["x" * 100] * 10_000))
    items = read_array(path)
    assert next(items) == (1, "x" * 100)
    with path.open("r+") as file:
        file.truncate(200_000)
    with pytest.raises(InputError, match=r"a\.json:\d{4}: not JSON"):
        list(items)
