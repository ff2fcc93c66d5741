"""What `make test` names is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite import CORE, PARTS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", [*CORE, *PARTS])
def test_what_the_table_names_is_there(name: str) -> None:
    """A test of the core that has another name now would leave `make test` unseen."""
    file, _, test = name.partition("::")
    path = ROOT / file
    assert path.is_dir() or f"def {test.partition('[')[0]}" in path.read_text(encoding="utf-8")
