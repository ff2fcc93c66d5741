"""The rows of a dataset's file. Each is read when it is asked for, so a file may be larger than memory."""

from __future__ import annotations

import json
import logging
import os
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from trimaran.choices import DATASET_FORMATS
from trimaran.data.arrow import parquet, pyarrow
from trimaran.errors import InputError
from trimaran.host.system_errors import refused

logger = logging.getLogger(__name__)

CACHE_BYTES = 256 << 20
"""Bytes of the row groups of one Parquet file that are kept; the one that was read last is, whatever its size."""
STREAMED_ROWS = 256
"""Rows of a Parquet or Arrow file that are in memory at a time when all of them are read in order."""


@runtime_checkable
class Rows(Protocol):
    """A file's rows by their place, from 0 on. Its methods may be called by several threads.

    Example: line, row = JsonlRows(Path("train.jsonl"))[17]
    """

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> tuple[int, Any]:
        """(line, row), as `Read` says. Raises InputError where the row cannot be read."""
        ...

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """All of them in order, without keeping any."""
        ...


class Read(Protocol):
    """What `trimaran.choices.DATASET_FORMATS` names: reads a file of one format.

    Example:
        def read_csv(path):
            with path.open(encoding="utf-8", newline="") as file:
                yield from enumerate(csv.DictReader(file), start=2)
    """

    def __call__(self, path: Path, /) -> Iterable[tuple[int, Any]]:
        """(line, row) of each prompt. Lines name a row in messages and in `Prompt.prompt_id`, so no
        two are equal. A row is a dict with the keys that `data` names.

        Where the answer has also a length and rows by their place (`Rows`), they are read one by one as
        they are needed; else all are kept in memory.

        Raises InputError that says where the file is broken.
        """
        ...


def open_rows(path: Path) -> Rows:
    """Raises InputError when the file is missing, holds no row or is none of its format."""
    if not path.is_file():
        raise InputError(f"{path}: no such dataset; give a JSONL or Parquet file")
    found = find_format(path)(path)
    rows = found if isinstance(found, Rows) else list(found)
    if not len(rows):
        raise InputError(f"{path}: holds no rows; one prompt a row is needed")
    return rows


def find_format(path: Path) -> Read:
    """By the suffix of the file's name; an unknown one is read as JSONL."""
    suffix = path.suffix.removeprefix(".")
    return DATASET_FORMATS.load(suffix if suffix in DATASET_FORMATS.names() else "jsonl")


class JsonlRows:
    """Keeps where each row starts: 8 bytes a row. Blank lines are none.

    Where each row starts holds for this file alone: one that changes or is replaced later is an error.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file once, and parses nothing of it."""
        self._path = path
        self._starts = array("Q")
        self._blanks = array("Q")
        """For each blank line, how many rows come before it."""
        start = 0
        with path.open("rb") as file:
            self._stamp = _stamp(file)
            for data in file:
                if data.isspace():
                    self._blanks.append(len(self._starts))
                else:
                    self._starts.append(start)
                start += len(data)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, place: int) -> tuple[int, Any]:
        with self._open() as file:
            file.seek(self._starts[place])
            data = file.readline()
        return self._parse(place + 1 + bisect_right(self._blanks, place), data)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        with self._open() as file:
            for line, data in enumerate(file, start=1):
                if not data.isspace():
                    yield self._parse(line, data)

    @contextmanager
    def _open(self) -> Generator[BinaryIO]:
        try:
            with self._path.open("rb") as file:
                if _stamp(file) == self._stamp:
                    yield file
                    return
        except OSError as error:
            raise refused(f"{self._path}: cannot be read", error) from None
        raise InputError(
            f"{self._path}: changed after it was opened, by its size or its time; its rows may be others"
            " now. Put the file back, or start again; write a new dataset under a new name"
        )

    def _parse(self, line: int, data: bytes) -> tuple[int, Any]:
        try:
            return line, json.loads(data)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self._path}:{line}: not JSON ({error})") from None


def _stamp(file: BinaryIO) -> tuple[int, int]:
    """Bytes, and nanoseconds of the last change."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


class ParquetRows:
    """Reads a row with the row group that it lies in. Groups that were read are kept, up to CACHE_BYTES."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._refusing():
            self._file = parquet().ParquetFile(path)
            about = self._file.metadata
            groups = [about.row_group(number) for number in range(about.num_row_groups)]
        self._ends: list[int] = list(accumulate(group.num_rows for group in groups))
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()
        largest = max((group.total_byte_size for group in groups), default=0)
        if len(groups) > 1 and largest > CACHE_BYTES:
            logger.warning(
                "%s: a row group holds %.1f GB, which are read for each row of a shuffled run;"
                " `trimaran data prepare` writes smaller ones",
                *(path, largest / 1e9),
            )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, place: int) -> tuple[int, Any]:
        number = bisect_right(self._ends, place)
        first = self._ends[number - 1] if number else 0
        with self._refusing():
            return place + 1, self._group(number).slice(place - first, 1).to_pylist()[0]

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        with self._refusing():
            batches = parquet().ParquetFile(self._path).iter_batches(STREAMED_ROWS)
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from enumerate(rows, start=1)

    def _group(self, number: int) -> Any:
        """A pyarrow.Table."""
        with self._lock:
            table = self._kept.pop(number, None)
            if table is None:
                table = self._file.read_row_group(number)
            self._kept[number] = table
            while len(self._kept) > 1 and sum(t.nbytes for t in self._kept.values()) > CACHE_BYTES:
                self._kept.popitem(last=False)
            return table

    @contextmanager
    def _refusing(self) -> Generator[None]:
        try:
            yield
        except (pyarrow().ArrowException, OSError) as error:
            raise refused(f"{self._path}: not Parquet", error) from None
