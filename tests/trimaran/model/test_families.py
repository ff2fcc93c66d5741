"""Families are data: what a table and real config.json say of them."""

from __future__ import annotations

from pathlib import Path

from tests.extending.families import table

ROOT = Path(__file__).parents[3]


def test_the_table_of_the_docs_is_that_of_the_data() -> None:
    assert table() in (ROOT / "docs/extending.md").read_text(encoding="utf-8")
