"""Each test is in one suite, and what `make test` names is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite import CORE, PARTS, suite_of

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("test", "suite"),
    [
        (CORE[0], "core"),
        (f"{CORE[0]}[a case]", "core"),
        (f"{CORE[0]}_else", "kills"),
        ("tests/rollout/test_new.py::test_x", "engines"),
        ("tests/doctor/test_hosts.py::test_x", "cluster"),
        ("tests/doctor/test_new.py::test_x", "installs"),
        ("tests/new/test_new.py::test_x", "kills"),
    ],
)
def test_an_e2e_test_is_in_the_core_or_in_a_part(test: str, suite: str) -> None:
    assert suite_of(test, is_e2e=True) == suite


@pytest.mark.parametrize("name", [*CORE, *PARTS])
def test_what_the_table_names_is_there(name: str) -> None:
    """A test of the core that has another name now would leave `make test` unseen."""
    file, _, test = name.partition("::")
    path = ROOT / file
    assert path.is_dir() or f"def {test.partition('[')[0]}" in path.read_text(encoding="utf-8")
