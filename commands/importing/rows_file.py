"""What an import asks of a file with rows: how many there are, what one column holds, how it was prepared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, cast

from trimaran.data.prepare import card_path
from trimaran.data.templates import TEMPLATES
from trimaran.errors import InputError


def count_rows(path: str) -> int | None:
    """None where the file is not here, or of a kind that is not read here."""
    file = Path(path)
    if file.suffix == ".jsonl" and file.is_file():
        with file.open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    table = _parquet(file)
    return table.metadata.num_rows if table else None


def column_names(path: str) -> list[str] | None:
    """None where the file is not here, or neither Parquet nor JSONL; of JSONL those of the first row."""
    if (rows := _json_rows(Path(path))) is not None:
        return [name for row in islice(rows, 1) for name in row]
    table = _parquet(Path(path))
    return list(table.schema_arrow.names) if table else None


def distinct(path: str, column: str) -> list[str] | None:
    """The texts of the column, each once; None where the file or the column is not here."""
    if (rows := _json_rows(Path(path))) is not None:
        texts = {str(value) for row in rows if (value := row.get(column)) is not None}
        return sorted(texts) or None
    table = _parquet(Path(path))
    if table is None or column not in table.schema_arrow.names:
        return None
    found: set[str] = set()
    for batch in table.iter_batches(columns=[column]):
        found |= {str(value) for value in batch.column(0).unique().to_pylist() if value is not None}
    return sorted(found)


def has_template(path: str, name: str) -> bool:
    """Whether the card beside the file says that `trimaran data prepare` put that template around its
    questions."""
    return _template(path) == asdict(TEMPLATES[name])


def has_words_around(path: str) -> bool:
    """Whether the card says that it put any words around them, or a system message before them."""
    return any((_template(path) or {}).values())


def _template(path: str) -> dict[str, Any] | None:
    """None without a card that has it."""
    try:
        card = json.loads(card_path(Path(path)).read_text(encoding="utf-8"))
        return dict(card["plan"]["template"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _json_rows(file: Path) -> Iterator[Mapping[str, Any]] | None:
    """None where the file is no JSONL, or not here."""
    if file.suffix != ".jsonl" or not file.is_file():
        return None
    return _read_json(file)


def _read_json(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield cast(Mapping[str, Any], json.loads(line))


def _parquet(file: Path) -> Any:
    """By name, because pyarrow has no type information."""
    if file.suffix != ".parquet" or not file.is_file():
        return None
    try:
        return import_module("pyarrow.parquet").ParquetFile(file)
    except (import_module("pyarrow").ArrowException, OSError) as error:
        raise InputError(f"{file}: not Parquet ({error})") from None
