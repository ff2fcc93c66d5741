"""What is counted and recorded."""

from __future__ import annotations

import json
from pathlib import Path

from tests.contract_run.__main__ import describe
from tests.contract_run.parts import PARTS
from tests.contract_run.results import FILE, Counts, read_report, record

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"><properties><property name="mode" value="0"/></properties></testcase>
<testcase classname="tests.a" name="two[x]"><failure message="no">...</failure></testcase>
<testcase classname="tests.a" name="three"><error message="no">...</error></testcase>
<testcase classname="tests.a" name="four"><skipped message="no"/></testcase>
</testsuite></testsuites>"""


def test_each_test_is_counted_once() -> None:
    counts = read_report(REPORT)
    assert counts == Counts(1, 1, ("tests.a::two[x]", "tests.a::three"), {"mode": "0"})
    assert not counts.good
    assert describe(counts) == "1 passed, 2 failed, 1 skipped"


def test_a_part_replaces_its_own_result(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    for part, passed in (("one", 1), ("two", 2), ("one", 3)):
        record(part, Counts(passed, 0), {"torch": "2"}, "2026-01-01", file)
    results = json.loads(file.read_text())
    assert {part: result["passed"] for part, result in results.items()} == {"one": 3, "two": 2}
    assert results["one"]["versions"] == {"torch": "2"}


def test_each_part_has_a_recorded_result_of_a_commit_without_failures() -> None:
    results = json.loads(FILE.read_text())
    assert results.keys() == {part.name for part in PARTS}
    assert all(result["passed"] for result in results.values())
    assert not [part for part, result in results.items() if result["failed"]]
    # A "+" says that the tree had changes that are in no commit.
    assert all(result["commit"].isalnum() for result in results.values())
