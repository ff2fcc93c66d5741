"""The program that tries the tests out, tried out itself on a tree of one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.__main__ import ROOT, try_out
from tests.mutations.table import MUTATIONS, Drive, Mutation

SOURCE = "def add(a, b):\n    return a + b\n"
TESTS = """
from code_under_test import add

def test_sum():
    assert add(1, 2) == 3

def test_name():
    assert add.__name__ == "add"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "code_under_test.py").write_text(SOURCE)
    (tmp_path / "test_add.py").write_text(TESTS)
    return tmp_path


def change(replacement: str, *tests: str, text: str = "a + b") -> Mutation:
    names = tuple(f"test_add.py::{test}" for test in tests)
    return Mutation("it adds", "code_under_test.py", text, replacement, names)


@pytest.mark.parametrize(
    ("mutation", "verdict"),
    [
        (change("a - b", "test_sum"), []),
        (change("b + a", "test_sum"), ["SURVIVED test_add.py::test_sum (exit code 0)"]),
        (
            change("a - b", "test_sum", "test_name"),
            ["SURVIVED test_add.py::test_name (exit code 0)"],
        ),
        (change("a +", "test_sum"), ["SURVIVED test_add.py::test_sum (exit code 4)"]),
        (change("a - b", "test_gone"), ["SURVIVED test_add.py::test_gone (exit code 4)"]),
        (
            change("a - b", "test_sum", text="a * b"),
            ["STALE: its text stands 0 times in code_under_test.py"],
        ),
    ],
)
def test_only_a_test_that_fails_notices_a_change(
    tree: Path, mutation: Mutation, verdict: list[str]
) -> None:
    assert list(try_out(tree, mutation, drive=True)) == verdict
    assert (tree / "code_under_test.py").read_text() == SOURCE


def test_a_finding_of_the_fault_driver_counts_for_its_reason_only(tree: Path) -> None:
    driver = tree / "tests" / "faults" / "drive.py"
    driver.parent.mkdir(parents=True)
    for package in (driver.parent, driver.parent.parent):
        (package / "__init__.py").touch()
    driver.write_text('print("BROKEN (broken): a token of nobody"); raise SystemExit(1)')
    for finding, verdict in (("token", []), ("crash", ["SURVIVED the fault driver's 'kill'"])):
        drive = Drive("kill", finding)
        mutation = Mutation("it adds", "code_under_test.py", "a + b", "a - b", (), drive)
        assert list(try_out(tree, mutation, drive=True)) == verdict


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.promise)
def test_every_row_of_the_table_fits_the_source(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.text) == 1
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()
