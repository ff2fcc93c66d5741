import csv
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from tests.data.pictures import png
from trimaran.data.sources import Source, find_sources
from trimaran.errors import InputError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=6)


def write(path: Path, kind: str, rows: list[dict[str, str]]) -> Path:
    path = path / f"train.{kind.split()[0]}"
    table = pyarrow.Table.from_pylist(rows, pyarrow.schema([("q", "string"), ("a", "string")]))
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=2))
    elif kind == "json lines":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
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


KINDS = ("jsonl", "json", "json lines", "csv", "parquet", "arrow file", "arrow stream")


@pytest.mark.parametrize("kind", KINDS)
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
    with pytest.raises(InputError, match="no such file or folder, and no hub id"):
        find_sources(str(tmp_path / "none"))
    with pytest.raises(InputError, match="holds no file of rows"):
        find_sources(str(tmp_path))
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(InputError, match=r"a file of \.txt is not known; those are \.jsonl"):
        find_sources(str(tmp_path / "a.txt"))


def test_a_hub_id_needs_the_datasets_library_and_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install 'trimaran\[data\]'"):
        find_sources("hiyouga/geometry3k")


class FakeLibrary:
    """The part of the datasets library that is called."""

    class Image:
        def __init__(self, decode: bool = True) -> None:
            self.decode = decode

    class List:
        def __init__(self, feature: Any) -> None:
            self.feature = feature

    def __init__(self) -> None:
        self.features = {"q": "string", "images": self.List(self.Image())}
        self.casts: dict[str, Any] = {}
        self.loaded: tuple[Any, ...] = ()

    def get_dataset_split_names(self, path: str, configuration: str | None) -> list[str]:
        return ["train", "test"]

    def load_dataset(self, path: str, name: str | None, **options: Any) -> "FakeLibrary":
        if path == "nobody/nothing":
            raise ConnectionError("no network")
        self.loaded = (path, name, options)
        return self

    def with_format(self, kind: None) -> "FakeLibrary":
        return self

    def cast_column(self, name: str, feature: Any) -> "FakeLibrary":
        self.casts[name] = feature
        return self

    def __iter__(self) -> Any:
        return iter([{"q": "1"}, {"q": "2"}])


def test_a_hubs_dataset_is_read_with_its_images_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = FakeLibrary()
    monkeypatch.setitem(sys.modules, "datasets", library)  # type: ignore[arg-type]
    assert [s.name for s in find_sources("hiyouga/geometry3k")] == ["train", "test"]
    (source,) = find_sources("openai/gsm8k:main@test", cache=tmp_path)
    rows = list(source.rows())
    assert library.loaded == ("openai/gsm8k", "main", {"split": "test", "cache_dir": str(tmp_path)})
    assert [row.place for row in rows] == ["openai/gsm8k:main@test:1", "openai/gsm8k:main@test:2"]
    assert list(library.casts) == ["images"]
    assert library.casts["images"].feature.decode is False
    assert source.describe() == [{"hub": "openai/gsm8k:main", "split": "test"}]
    with pytest.raises(InputError, match="cannot be read .*no network.*fetch its files"):
        list(Source("train", hub_id="nobody/nothing").rows())


@pytest.mark.e2e
@pytest.mark.parametrize("is_list", [False, True])
def test_the_real_library_gives_rows_with_their_images_as_they_are(
    is_list: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It takes a folder for a dataset of a hub where one of that name is there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    library: Any = pytest.importorskip("datasets", reason="datasets is not installed here")
    image = {"bytes": png(28, 28, "L"), "path": None}
    cell, feature = (
        ([image], library.List(library.Image())) if is_list else (image, library.Image())
    )
    features = library.Features({"problem": library.Value("string"), "images": feature})
    made = library.Dataset.from_dict({"problem": ["1 + 1?"], "images": [cell]}, features=features)
    (tmp_path / "mine" / "set").mkdir(parents=True)
    made.to_parquet("mine/set/train.parquet")
    (row,) = Source("train", hub_id="mine/set", cache=tmp_path / "cache").rows()
    assert row.values == {"problem": "1 + 1?", "images": cell}
    with pytest.raises(
        InputError, match="--from: nobody/nothing: the hub's dataset cannot be read"
    ):
        find_sources("nobody/nothing")


def test_a_file_that_is_missing_is_no_hubs_dataset() -> None:
    with pytest.raises(InputError, match=r"raw/typo\.json: no such file or folder"):
        find_sources("raw/typo.json")
