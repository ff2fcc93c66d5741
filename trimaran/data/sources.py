"""Rows of files that others have written: JSON, JSON lines, CSV, Parquet and Arrow."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any, cast

from trimaran.data.arrow import ipc, pyarrow
from trimaran.data.rows import STREAMED_ROWS, JsonlRows, ParquetRows
from trimaran.errors import InputError
from trimaran.host.system_errors import refused

SHARD = re.compile(r"-\d+-of-\d+$")
SIDE_FILES = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""What the datasets library writes beside its files of rows."""
CARD = ".card.json"


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row as its owner wrote it."""

    place: str
    """File and line, or number: how messages and the card call it."""
    values: Mapping[str, Any]
    folder: Path
    """Where paths in the row begin."""


@dataclass(frozen=True, slots=True)
class Source:
    """One split of a dataset."""

    name: str
    """train, test, ..."""
    files: tuple[Path, ...]

    def rows(self) -> Iterator[SourceRow]:
        """Raises InputError that says where a file is broken."""
        for path in self.files:
            with named(path):
                for number, row in READERS[path.suffix](path):
                    place = f"{path.name}:{number}"
                    if not isinstance(row, dict):
                        raise InputError(f"{path}:{number}: a row must be an object with columns")
                    yield SourceRow(place, cast(dict[str, Any], row), path.parent)

    def describe(self) -> list[dict[str, Any]]:
        """What the card says of it: each file with its size and SHA-256."""
        return [
            {"file": path.name, "bytes": path.stat().st_size, "sha256": digest_of(path)}
            for path in self.files
        ]


def find_sources(given: str, split: str | None = None) -> list[Source]:
    """The sources of a file or a folder, by the names of the splits.

    A file's split is its name without the number of its shard, or the folder's where it is called data.
    Raises InputError where nothing is found, or not the split that is asked for.

    Example: [source.name for source in find_sources("gsm8k/")] == ["test", "train"]
    """
    path = Path(given)
    if not path.exists():
        raise InputError(
            f"--from: {given}: no such file or folder; a dataset of a hub is fetched before"
            " (`hf download OWNER/NAME --repo-type dataset --local-dir FOLDER`)"
        )
    sources = _local(path)
    if not sources:
        known = ", ".join(READERS)
        raise InputError(f"--from: {given}: holds no file of rows ({known})")
    if split is None:
        return sources
    if found := [source for source in sources if source.name == split]:
        return found
    names = ", ".join(source.name for source in sources)
    raise InputError(f"--split: {given} has no {split} (it has: {names})")


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


@contextmanager
def named(path: Path) -> Generator[None]:
    """What the system says of a file is an error that names it."""
    try:
        yield
    except OSError as error:
        raise refused(f"{path}: cannot be read", error) from None


def _local(path: Path) -> list[Source]:
    if path.is_file() and path.suffix not in READERS:
        raise InputError(
            f"--from: {path}: a file of {path.suffix or 'no suffix'} is not known; those are"
            f" {', '.join(READERS)}"
        )
    found = [path] if path.is_file() else sorted(path.rglob("*"))
    by_split: dict[str, list[Path]] = {}
    for file in found:
        is_rows = file.suffix in READERS and file.name not in SIDE_FILES
        if file.is_file() and is_rows and not file.name.endswith(CARD):
            by_split.setdefault(_split_of(file), []).append(file)
    return [Source(name, tuple(files)) for name, files in sorted(by_split.items())]


def _split_of(path: Path) -> str:
    name = SHARD.sub("", path.stem)
    return path.parent.name if name == "data" else name


def _read_json(path: Path) -> Iterable[tuple[int, Any]]:
    """One array of rows, which is read as a whole; or a row a line, as many files called .json are."""
    with path.open("rb") as file:
        first = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if first != b"[":
        return JsonlRows(path)
    try:
        rows: list[Any] = json.loads(path.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error})") from None
    return enumerate(rows, start=1)


def _read_csv(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows by the line on which they end."""
    csv.field_size_limit(1 << 30)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                if None in row or None in row.values():
                    raise InputError(f"{path}:{reader.line_num}: more or fewer fields than columns")
                yield reader.line_num, row
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not CSV ({error})") from None


def _read_arrow(path: Path) -> Iterator[tuple[int, Any]]:
    """A file or a stream of Arrow's IPC; the datasets library writes streams."""
    try:
        with pyarrow().memory_map(str(path)) as file:
            try:
                reader = ipc().open_file(file)
                batches = (reader.get_batch(n) for n in range(reader.num_record_batches))
            except pyarrow().ArrowInvalid:
                file.seek(0)
                batches = iter(ipc().open_stream(file))
            # A batch may be the whole file.
            rows = (
                row
                for batch in batches
                for start in range(0, len(batch), STREAMED_ROWS)
                for row in batch.slice(start, STREAMED_ROWS).to_pylist()
            )
            yield from enumerate(rows, 1)
    except pyarrow().ArrowException as error:
        raise InputError(f"{path}: not Arrow ({error})") from None


READERS: Mapping[str, Any] = {
    ".jsonl": JsonlRows,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": ParquetRows,
    ".arrow": _read_arrow,
}
"""By suffix: functions of a path that give (number, row)."""
