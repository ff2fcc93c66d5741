import csv
import json
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from trimaran.data.sources import find_sources
from trimaran.errors import InputError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=6)


def write(path: Path, kind: str, rows: list[dict[str, str]]) -> Path:
    path = path / f"train.{kind.split()[0]}"
    table = pyarrow.Table.from_pylist(rows, pyarrow.schema([("q", "string"), ("a", "string")]))
    if kind in ("jsonl", "json lines"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=2))
    elif kind == "csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["q", "a"])
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "parquet":
        parquet.write_table(table, path)
    else:
        new = ipc.new_file if kind == "arrow file" else ipc.new_stream
        with new(str(path), table.schema) as file:
            file.write_table(table)
    return path


@pytest.mark.parametrize(
    "kind", ["jsonl", "json", "json lines", "csv", "parquet", "arrow file", "arrow stream"]
)
@given(rows=st.lists(st.fixed_dictionaries({"q": TEXT, "a": TEXT}), min_size=1, max_size=5))
def test_every_format_gives_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, kind: str, rows: list[dict[str, str]]
) -> None:
    path = write(tmp_path_factory.mktemp("source"), kind, rows)
    (source,) = find_sources(str(path))
    assert source.name == "train"
    found = list(source.rows())
    assert [row.values for row in found] == rows
    places = [row.place for row in found]
    assert len(set(places)) == len(places)
    assert all(place.startswith(f"{path.name}:") for place in places)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "[1", "a.json: not JSON"),
        ("a.json", "[1]", "a.json:1: a row must be an object"),
        ("a.json", '{"a": 1}\n{', "a.json:2: not JSON"),
        ("a.csv", "q,a\n1\n", "a.csv:2: more or fewer fields"),
        ("a.csv", "q,a\n1,2,3\n", "a.csv:2: more or fewer fields"),
        ("a.csv", 'q,a\n"1,2\n', "a.csv: not CSV"),
        ("a.arrow", "nothing", "a.arrow: not Arrow"),
        ("a.parquet", "nothing", "a.parquet: not Parquet"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    (source,) = find_sources(str(tmp_path / name))
    with pytest.raises(InputError) as caught:
        list(source.rows())
    assert message in str(caught.value)


def test_splits_are_found_by_the_names_of_files_and_folders(tmp_path: Path) -> None:
    for name in (
        "data/train-00000-of-00002.parquet",
        "data/train-00001-of-00002.parquet",
        "data/test-00000-of-00001.parquet",
        "validation/data-00000-of-00001.arrow",
        "dataset_info.json",
        "train.card.json",
        "README.md",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    sources = find_sources(str(tmp_path))
    found = {source.name: [path.name for path in source.files] for source in sources}
    assert found == {
        "test": ["test-00000-of-00001.parquet"],
        "train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
        "validation": ["data-00000-of-00001.arrow"],
    }
    (train,) = find_sources(str(tmp_path), "train")
    assert train == sources[1]
    with pytest.raises(InputError, match=r"has no dev \(it has: test, train, validation\)"):
        find_sources(str(tmp_path), "dev")


def test_what_is_no_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        find_sources(str(tmp_path / "none"))
    with pytest.raises(InputError, match="holds no file of rows"):
        find_sources(str(tmp_path))
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(InputError, match=r"a file of \.txt is not known; those are \.jsonl"):
        find_sources(str(tmp_path / "a.txt"))
