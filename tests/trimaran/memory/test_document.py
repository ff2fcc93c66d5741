"""docs/parallelism.md has the tables that the formulas give."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimaran.memory import document
from trimaran.memory.document import refresh

DOCUMENT = Path(document.__file__).parents[2] / "docs" / "parallelism.md"


def test_the_document_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == refresh(text), "run: python -m trimaran.memory docs/parallelism.md"


def test_only_the_tables_are_written() -> None:
    text = f"before\n{document.BEGIN}\nold\n{document.END}\nafter\n"
    fresh = refresh(text)
    assert fresh.startswith(f"before\n{document.BEGIN}\n\n| model |")
    assert fresh.endswith(f"{document.END}\nafter\n")
    assert "old" not in fresh


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        refresh("nothing")
