"""docs/parallelism.md has the tables that the formulas give."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.planner import document
from commands.planner.document import refresh

DOCUMENT = Path(document.__file__).parents[2] / "docs" / "parallelism.md"


def test_the_document_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == refresh(text), "run: python -m trimaran.model.memory docs/parallelism.md"


def test_only_the_tables_are_written() -> None:
    blocks = ["{}\nold\n{}\nbetween".format(*document.marks(name)) for name in document.TABLES]
    fresh = refresh("\n".join(["before", *blocks, "after"]) + "\n")
    begin, end = document.marks("models")
    assert fresh.startswith("before\n") and fresh.endswith("between\nafter\n")
    assert f"between\n{begin}\n\n| model |" in fresh and f"|\n\n{end}\nbetween" in fresh
    assert fresh.count("between") == len(document.TABLES)
    assert "old" not in fresh


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        refresh("nothing")
