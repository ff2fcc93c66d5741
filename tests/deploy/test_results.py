"""What is too long for each change has its last result beside it, with commit and date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.recorded import FAULTS, MOVED, cluster_rows, results

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"


@pytest.mark.parametrize("name", ["cluster", "compose", "kubernetes"])
def test_the_last_result_says_which_commit_and_when(name: str) -> None:
    seen = results(name)
    assert re.fullmatch(r"[0-9a-f]{7,12}\+?", seen["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", seen["date"])
    steps = seen.get("steps", {}).values()
    assert not [step for step in steps if "failed" in step or step.get("left behind")]


def test_the_table_in_the_docs_is_that_of_the_last_result() -> None:
    rows = "\n".join(cluster_rows(results("cluster")))
    assert rows in DEPLOY.read_text(encoding="utf-8"), "print them: python -m tests.recorded"


def test_every_fault_of_the_cluster_is_in_the_docs() -> None:
    timed = {name for name, seen in results("cluster").items() if isinstance(seen, dict)}
    assert timed == {*FAULTS, MOVED, "a run from its start to its end"}


def test_the_sizes_of_images_in_the_docs_are_those_of_the_last_results() -> None:
    reported = DEPLOY.read_text(encoding="utf-8")
    for image, megabytes in results("compose")["images"]["megabytes"].items():
        size = re.search(rf"(?m)^\| `{image}` \| [^|]+ \| ([\d.]+) GB \|", reported)
        assert size and size[1] == f"{megabytes / 1000:.1f}", image
