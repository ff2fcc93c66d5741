"""No float64 goes through a collective: see collectives.py, whose guard stands in all of these tests."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_only_the_trainer_reduces() -> None:
    """Weight sync broadcasts bytes, in process groups of its own that MindSpeed does not see."""
    callers = {
        path.relative_to(ROOT).parts[1]
        for folder in ("services", "weights")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith(("all_", "reduce_"))
        if isinstance(node.value, ast.Name) and node.value.id == "dist"
    }
    assert callers == {"trainer"}
