"""Rows of files that others have written: JSON, JSON lines, CSV, Parquet, Arrow, and datasets of a hub."""

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

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?(@[\w.-]+)?")
"""owner/name, :configuration and @split, which may be left out."""
SHARD = re.compile(r"-\d+-of-\d+$")
SIDE_FILES = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""What the datasets library writes beside its files of rows."""
CARD = ".card.json"
LIBRARY = "datasets"


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row as its owner wrote it."""

    place: str
    """File and line, or number: how messages and the card call it."""
    values: Mapping[str, Any]
    folder: Path | None
    """Where paths in the row begin; None for a row of a hub."""


@dataclass(frozen=True, slots=True)
class Source:
    """One split of a dataset."""

    name: str
    """train, test, ..."""
    files: tuple[Path, ...] = ()
    hub_id: str = ""
    cache: Path | None = None

    def rows(self) -> Iterator[SourceRow]:
        """Raises InputError that says where a file is broken."""
        if self.hub_id:
            yield from _hub_rows(self)
        for path in self.files:
            with named(path):
                for number, row in READERS[path.suffix](path):
                    place = f"{path.name}:{number}"
                    if not isinstance(row, dict):
                        raise InputError(f"{path}:{number}: a row must be an object with columns")
                    yield SourceRow(place, cast(dict[str, Any], row), path.parent)

    def describe(self) -> list[dict[str, Any]]:
        """What the card says of it: each file with its size and SHA-256."""
        if self.hub_id:
            return [{"hub": self.hub_id, "split": self.name}]
        return [
            {"file": path.name, "bytes": path.stat().st_size, "sha256": digest_of(path)}
            for path in self.files
        ]


def find_sources(given: str, split: str | None = None, cache: Path | None = None) -> list[Source]:
    """The sources of a file, a folder or a hub id, by the names of the splits.

    A file's split is its name without the number of its shard, or the folder's where it is called data.
    Raises InputError where nothing is found, or not the split that is asked for.

    Example: [source.name for source in find_sources("gsm8k/")] == ["test", "train"]
    """
    path = Path(given)
    if path.exists():
        sources = _local(path)
    elif HUB_ID.fullmatch(given) and path.suffix not in READERS:
        sources = _hub(given, split, cache)
    else:
        raise InputError(f"--from: {given}: no such file or folder, and no hub id (owner/name)")
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


def _hub(given: str, split: str | None, cache: Path | None) -> list[Source]:
    library = import_datasets()
    name, _, named = given.partition("@")
    if split := split or named:
        return [Source(split, hub_id=name, cache=cache)]
    path, _, configuration = name.partition(":")
    with _hub_told(name):
        names = library.get_dataset_split_names(path, configuration or None)
    return [Source(split, hub_id=name, cache=cache) for split in names]


def _hub_rows(source: Source) -> Iterator[SourceRow]:
    library = import_datasets()
    path, _, configuration = source.hub_id.partition(":")
    with _hub_told(source.hub_id):
        dataset = library.load_dataset(
            *(path, configuration or None),
            split=source.name,
            cache_dir=None if source.cache is None else str(source.cache),
        )
        dataset = dataset.with_format(None)
        for name, feature in dataset.features.items():
            if (undecoded := _undecoded(feature, library)) is not feature:
                dataset = dataset.cast_column(name, undecoded)
        for number, row in enumerate(cast(Iterable[dict[str, Any]], dataset), 1):
            yield SourceRow(f"{source.hub_id}@{source.name}:{number}", row, None)


def _undecoded(feature: Any, library: Any) -> Any:
    """Images as their owner wrote them: {"bytes", "path"}."""
    if isinstance(feature, library.Image):
        return library.Image(decode=False)
    inner = getattr(feature, "feature", None)  # of a list
    if isinstance(inner, library.Image):
        return type(feature)(_undecoded(inner, library))
    return feature


@contextmanager
def _hub_told(name: str) -> Generator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever the library stumbles over: the network, a name, a script
        raise InputError(
            f"--from: {name}: the hub's dataset cannot be read ({type(error).__name__}: {error});"
            " where no hub is in reach, fetch its files and name their folder"
        ) from None


def import_datasets() -> Any:
    """Raises InputError that names the extra."""
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            f"a hub's dataset is read by the package {LIBRARY} ({error}): pip install"
            " 'trimaran[data]'; files and folders need none"
        ) from None
    return cast(Any, datasets)


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
