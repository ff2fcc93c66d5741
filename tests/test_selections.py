"""What `make unit` does not run, `make e2e` does, but for what `make thorough` has more of."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# One folder that is e2e by its name, files with a test that is marked, one file of neither.
SOME = [
    "tests/launch",
    "tests/e2e/test_memory.py",
    "tests/trimaran/test_imports.py",
    "tests/trimaran/test_config.py",
]


def commands(target: str) -> list[str]:
    """What make would run, without the installation."""
    command = ["make", "--dry-run", "--no-print-directory", "--old-file=install", target]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        command, cwd=ROOT, env=outside, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def selected(target: str) -> list[str]:
    """The arguments that say which tests a target runs."""
    (command,) = [line for line in commands(target) if " -m pytest " in line]
    arguments = shlex.split(command.partition(" -m pytest ")[2])
    workers = arguments.index("-n") if "-n" in arguments else len(arguments)
    return arguments[:workers]


def collected(*arguments: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments, *SOME]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_make_test_is_lint_unit_and_e2e() -> None:
    parts = [line for target in ("lint", "unit", "e2e") for line in commands(target)]
    assert commands("test") == parts


@pytest.mark.e2e
def test_a_test_is_unit_or_e2e_and_not_both() -> None:
    unit, e2e, thorough = (collected(*selected(target)) for target in ("unit", "e2e", "thorough"))
    assert unit and e2e and thorough
    assert not unit & e2e and not unit & thorough and not e2e & thorough
    assert unit | e2e | thorough == collected()


def test_unit_and_e2e_are_told_apart_by_a_mark_alone() -> None:
    assert selected("unit") == ["-m", "not e2e"]
    assert selected("e2e") == ["-m", "e2e and not thorough"]
    assert selected("thorough") == ["-m", "thorough"]
