import json
import logging
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from trimaran.data import rows as rows_module
from trimaran.data.rows import JsonlRows, ParquetRows, Rows, open_rows
from trimaran.errors import InputError

VALUES = st.none() | st.integers(-(2**53), 2**53) | st.text(max_size=8)


@given(
    lines=st.lists(
        st.dictionaries(st.text(max_size=3), VALUES, max_size=3) | st.sampled_from(["", " ", "\t"]),
        max_size=20,
    ),
    end=st.sampled_from(["", "\n"]),
    between=st.sampled_from(["\n", "\r\n"]),
)
def test_jsonl_rows_by_place_are_those_in_order(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Any], end: str, between: str
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_bytes((between.join(texts) + end).encode())
    rows = JsonlRows(path)
    expected = [(n, line) for n, line in enumerate(lines, 1) if not isinstance(line, str)]
    assert list(rows) == expected
    assert [rows[place] for place in range(len(rows))] == expected


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 7), st.randoms())
def test_parquet_rows_by_place_are_those_in_order(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], group: int, rng: random.Random
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    table = pyarrow.table({"n": values, "b": [b"x" * n for n in values]})
    parquet.write_table(table, path, row_group_size=group)
    rows = ParquetRows(path)
    expected = [(place + 1, {"n": n, "b": b"x" * n}) for place, n in enumerate(values)]
    assert (list(rows), len(rows)) == (expected, len(values))
    places = list(range(len(values))) * 2
    rng.shuffle(places)
    assert [rows[place] for place in places] == [expected[place] for place in places]


def test_row_groups_are_kept_up_to_a_size_and_large_ones_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [str(n) * 1000 for n in range(64)]})
    parquet.write_table(table, path, row_group_size=8)
    monkeypatch.setattr(rows_module, "CACHE_BYTES", 30_000)  # of 8,000 to 16,000 a group
    with caplog.at_level(logging.WARNING):
        rows = ParquetRows(path)
    assert not caplog.records
    read: list[int] = []
    file: Any = rows._file

    def read_row_group(number: int) -> Any:
        read.append(number)
        return file.read_row_group(number)

    monkeypatch.setattr(rows, "_file", SimpleNamespace(read_row_group=read_row_group))
    for place in (0, 9, 1, 10, 60, 61, 0, 9):
        assert rows[place][1]["text"] == str(place) * 1000
    assert read == [0, 1, 7, 0, 1]
    monkeypatch.setattr(rows_module, "CACHE_BYTES", 100)
    with caplog.at_level(logging.WARNING):
        ParquetRows(path)
    assert "trimaran data prepare" in caplog.text


@pytest.mark.parametrize("text", ['{"a"', "[" * 100_000])
def test_a_row_that_is_not_json_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n' + text)
    with pytest.raises(InputError, match=r"a\.jsonl:3: not JSON"):
        JsonlRows(path)[1]


@pytest.mark.parametrize("change", ["rewritten", "replaced", "removed"])
def test_a_jsonl_file_that_changes_after_the_start_is_named(tmp_path: Path, change: str) -> None:
    path, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    rows = JsonlRows(path)
    assert rows[1] == (2, {"a": 2})
    if change == "rewritten":  # as many bytes
        path.write_text('{"a": 1}\n{"a": 3}\n')
        os.utime(path, ns=(1, 1))
    if change == "replaced":
        other.write_text('{"a": 0}\n{"a": 1}\n{"a": 2}\n')
        other.replace(path)
    if change == "removed":
        path.unlink()
    reported = "cannot be read" if change == "removed" else "changed after it was opened"
    with pytest.raises(InputError, match=rf"a\.jsonl: {reported}"):
        rows[1]
    with pytest.raises(InputError, match=rf"a\.jsonl: {reported}"):
        list(rows)


def test_a_format_without_places_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    found = [(1, {}), (2, {})]
    monkeypatch.setattr(rows_module, "find_format", lambda path: lambda path: iter(found))
    rows = open_rows(tmp_path / "a.jsonl")
    assert isinstance(rows, Rows)
    assert list(rows) == found


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl: no such dataset"):
        open_rows(tmp_path / "none.jsonl")
    (tmp_path / "x.parquet").write_text("{}")
    with pytest.raises(InputError, match=r"x\.parquet: not Parquet"):
        open_rows(tmp_path / "x.parquet")
    for text in ("", "\n \n"):
        (tmp_path / "empty.jsonl").write_text(text)
        with pytest.raises(InputError, match=r"empty\.jsonl: holds no rows"):
            open_rows(tmp_path / "empty.jsonl")
