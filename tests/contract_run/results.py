"""What came of the parts: `results.json`, which stands in the repository."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Counts:
    """Of one part's tests.

    Example: Counts(passed=90, skipped=1, failed=("tests.rollout.test_x::test_y",))
    """

    passed: int
    skipped: int
    failed: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What tests recorded of the packages."""

    @property
    def good(self) -> bool:
        return bool(self.passed) and not self.failed


def read_report(report: str) -> Counts:
    """`report`: JUnit's XML as pytest writes it."""
    passed, skipped, failed = 0, 0, list[str]()
    facts: dict[str, str] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        facts |= {one.get("name", ""): one.get("value", "") for one in case.iter("property")}
        if case.find("skipped") is not None:
            skipped += 1
        elif case.find("failure") is None and case.find("error") is None:
            passed += 1
        else:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
    return Counts(passed, skipped, tuple(failed), facts)


def record(
    part: str, counts: Counts, versions: Mapping[str, str], date: str, file: Path = FILE
) -> None:
    """Replaces the part's last result; the others stay."""
    results = json.loads(file.read_text()) if file.exists() else {}
    given = {"date": date, "commit": commit(file), "versions": dict(versions)}
    results[part] = {**given, **asdict(counts)}
    file.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


def commit(file: Path) -> str:
    """The checkout's, with a plus where files of it have changed since, but for the results in `file`."""
    changed = _git("status", "--porcelain", "--", ".", f":(exclude){file}")
    return _git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
