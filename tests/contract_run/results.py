"""What came of the parts: `results.json`, which stands in the repository."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Counts:
    """Of one part's tests.

    Example: Counts(passed=90, skipped=1, expected=("tests.rollout.test_x::test_y",))
    """

    passed: int
    skipped: int
    failed: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    """Failed for a reason that the part gives, and is no failure of ours."""
    facts: Mapping[str, str] | None = None
    """What tests recorded."""

    @property
    def good(self) -> bool:
        return bool(self.passed) and not self.failed


def read_report(report: str, reasons: Mapping[str, str]) -> Counts:
    """`report`: JUnit's XML as pytest writes it. `reasons`: name of a test that may fail -> why."""
    passed, skipped, failed, expected = 0, 0, list[str](), list[str]()
    facts: dict[str, str] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        facts |= {one.get("name", ""): one.get("value", "") for one in case.iter("property")}
        if case.find("skipped") is not None:
            skipped += 1
        elif case.find("failure") is None and case.find("error") is None:
            passed += 1
        else:
            (expected if name in reasons else failed).append(name)
    return Counts(passed, skipped, tuple(failed), tuple(expected), facts)


def record(
    part: str,
    counts: Counts,
    *,
    versions: Mapping[str, str],
    reasons: Mapping[str, str],
    date: str,
    file: Path = FILE,
) -> None:
    """Replaces the part's last result; the others stay."""
    results = json.loads(file.read_text()) if file.exists() else {}
    results[part] = {
        "date": date,
        "commit": commit(),
        "versions": dict(versions),
        **asdict(counts),
        "expected": {name: reasons[name] for name in counts.expected},
    }
    file.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")


def commit() -> str:
    """The checkout's, with a plus where files of it have changed since."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
