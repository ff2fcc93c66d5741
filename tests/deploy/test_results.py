"""What is too long for each change has its last result beside it, with commit and date."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["cluster", "compose", "kubernetes"])
def test_the_last_result_says_which_commit_and_when(name: str) -> None:
    results = json.loads((TESTS / name / "results.json").read_text())
    assert re.fullmatch(r"[0-9a-f]{7,12}\+?", results["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", results["date"])
    assert not [step for step in results.get("steps", {}).values() if "failed" in step]
