"""Runs all parts, or those that are named, one after another: `python -m tests.contract_run [PART...]`.

Prints a line each. Ends with status 1 when a test of any fails, and with status 2 for a part that
is not known. A part that this machine cannot run is skipped, and its last result stays.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.contract_run.packages import Missing
from tests.contract_run.parts import PARTS, ROOT, Part
from tests.contract_run.results import Counts, read_report, record
from tests.process_group import run_in_group

VERSIONS = """
import importlib.metadata as metadata, json, platform, sys
print(json.dumps({"python": platform.python_version()} | {n: metadata.version(n) for n in sys.argv[1:]}))
"""
LAST_LINES = 15


def main(names: list[str]) -> int:
    known = {part.name: part for part in PARTS}
    if unknown := [name for name in names if name not in known]:
        print(f"no part is called {unknown[0]}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    good = [run(known[name]) for name in names or known]
    return 0 if all(good) else 1


def run(part: Part) -> bool:
    """Whether it was skipped or nothing failed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            environment = part.environment(Path(folder))
        except Missing as missing:
            print(f"{part.name}: skipped: {missing}", flush=True)
            return True
        started = time.monotonic()
        counts, output = run_tests(part, environment, Path(folder) / "report.xml")
        seconds = time.monotonic() - started
        versions = read_versions(part)
    print(f"{part.name}: {describe(counts)}, {seconds:.0f} s: {part.what}", flush=True)
    if not counts.good:
        print("\n".join(["", *output.splitlines()[-LAST_LINES:], *counts.failed]), flush=True)
    today = datetime.now(UTC).date().isoformat()
    record(part.name, counts, versions, today)
    return counts.good


def run_tests(part: Part, environment: dict[str, str], report: Path) -> tuple[Counts, str]:
    """What came of them, and what they printed. After the deadline all of them have failed."""
    pytest = [part.python, "-m", "pytest", *part.tests, "-q", "--junitxml", report]
    command = [*pytest, "-p", "no:cacheprovider", "-o", "junit_family=xunit1"]
    ended = run_in_group(command, ROOT, environment, part.deadline)
    if ended is None:
        return Counts(0, 0, (f"not done after {part.deadline:.0f} s",)), ""
    status, output = ended
    if not report.exists():
        return Counts(0, 0, (f"pytest ended with status {status}",)), output
    return read_report(report.read_text()), output


def read_versions(part: Part) -> dict[str, str]:
    """Of its packages, as its interpreter finds them."""
    command = [str(part.python), "-c", VERSIONS, *part.packages]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    given = {"vllm-ascend": part.vllm_ascend} if part.vllm_ascend else {}
    return json.loads(answer.stdout) | given


def describe(counts: Counts) -> str:
    return f"{counts.passed} passed, {len(counts.failed)} failed, {counts.skipped} skipped"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
