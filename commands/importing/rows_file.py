"""What an import asks of a file with rows: how many there are, what one column holds, how it was prepared."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trimaran.data.arrow import parquet
from trimaran.data.prepare import card_path
from trimaran.data.rows import Rows, open_rows
from trimaran.data.templates import TEMPLATES


def count_rows(path: str) -> int | None:
    """None where the file is not here, or of a kind that is not read here."""
    rows = _rows(path)
    return None if rows is None else len(rows)


def column_names(path: str) -> list[str] | None:
    """Those of the first row; None where the file is not here, or of a kind that is not read here."""
    rows = _rows(path)
    return None if rows is None else list(rows[0][1])


def distinct(path: str, column: str) -> list[str] | None:
    """The texts of the column, each once; None where the file or the column is not here."""
    if column not in (column_names(path) or ()):
        return None
    if path.endswith(".parquet"):
        values = parquet().read_table(path, columns=[column]).column(0).unique().to_pylist()
    else:
        values = [row.get(column) for _, row in open_rows(Path(path))]
    return sorted({str(value) for value in values if value is not None})


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


def _rows(path: str) -> Rows | None:
    is_read = Path(path).suffix in (".parquet", ".jsonl") and Path(path).is_file()
    return open_rows(Path(path)) if is_read else None
