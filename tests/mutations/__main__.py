"""Do the tests see what they are there for? `python -m tests.mutations [--only TEXT]`

Makes each source change of the table in a temporary copy of the tree and runs the
tests that must notice it there; a line a change. Exit code 1 when a change survives
or its text is no longer found. The checkout itself is never touched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from tests.mutations.table import MUTATIONS, Mutation
from tests.process_group import run_in_group

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("trimaran", "weights", "services", "commands", "tests", "pyproject.toml")
TEST_SECONDS = 240
FAILED = 1
"""pytest's exit code for a test that failed; an error of collection has another one."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="changes whose promise or file holds this text")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if arguments.only in m.promise or arguments.only in m.file]
    with tempfile.TemporaryDirectory(prefix="trimaran-mutations-") as folder:
        copy = copy_tree(Path(folder) / "tree")
        tests = sorted({test for mutation in chosen for test in mutation.tests})
        if run_tests(copy, tests) != 0:
            print("the tests fail without any change; see pytest's own output")
            return 1
        survivors = 0
        for mutation in chosen:
            started = time.monotonic()
            faults = list(try_out(copy, mutation))
            survivors += bool(faults)
            verdict = "; ".join(faults) or "killed"
            print(f"{mutation.promise}: {verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} changes were noticed")
    return int(survivors > 0)


def copy_tree(target: Path) -> Path:
    target.mkdir()
    for name in PARTS:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, target)
    return target


def try_out(copy: Path, mutation: Mutation) -> Iterable[str]:
    """What keeps the change from being noticed as it should be; nothing when all is well."""
    path = copy / mutation.file
    before = path.read_text()
    if before.count(mutation.text) != 1:
        yield f"STALE: its text stands {before.count(mutation.text)} times in {mutation.file}"
        return
    path.write_text(before.replace(mutation.text, mutation.replacement))
    try:
        for test in mutation.tests:
            if (code := run_tests(copy, [test])) != FAILED:
                yield f"SURVIVED {test} (exit code {code})"
    finally:
        path.write_text(before)


def run_tests(copy: Path, tests: list[str]) -> int:
    """Of these, what is in `make test`. pytest's exit code; -1 when it takes too long: that notices
    nothing."""
    words = ["-m", "not e2e or core", "-q", "-x", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",  # two changes of one second and size must not be confused
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", *words, *map(node_of, tests)]
    ended = run_in_group(command, copy, environment, TEST_SECONDS)
    return ended[0] if ended else -1


def node_of(test: str) -> str:
    """As pytest names it, from the test's name alone. Raises ValueError unless one file has it."""
    [file] = (name for name, text in texts().items() if f"def {test}(" in text)
    return f"{file}::{test}"


@cache
def texts() -> Mapping[str, str]:
    """Of the files with tests, by their names in the tree."""
    files = (ROOT / "tests").rglob("test_*.py")
    return {str(file.relative_to(ROOT)): file.read_text() for file in files}


if __name__ == "__main__":
    sys.exit(main())
