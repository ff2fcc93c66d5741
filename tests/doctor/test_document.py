"""The version matrix."""

from __future__ import annotations

import re

import pytest

from commands.doctor.checks.versions import check_versions, load_matrix


def _version(specifier: str, fits: bool) -> str:
    """One that does, or does not."""
    number = re.search(r"\d[\w.]*", specifier)
    assert number
    if not fits:
        return "0.0.1" if ">" in specifier or "==" in specifier else number[0]
    if specifier.startswith("!="):
        return "0.1.7"
    return number[0].removesuffix(".")


@pytest.mark.parametrize(
    "row", load_matrix(), ids=lambda row: f"{dict(row.when)} {dict(row.needs)}"
)
def test_each_row_can_be_broken(row) -> None:
    """By every package that it names, one at a time; and by none where all fit."""
    there = {name: _version(want, fits=True) for name, want in row.when.items()}
    fitting = {name: _version(want.lstrip("?"), fits=True) for name, want in row.needs.items()}
    right = fitting | {name: v for name, v in there.items() if name not in fitting}
    if not row.when.keys() & row.needs.keys():
        assert not list(check_versions(right, [row]))
    for name in row.needs:
        broken = {**right, name: there.get(name, "0.0.1")}
        if name in there and name in fitting:
            broken[name] = "0.1.7"
        (finding,) = check_versions(broken, [row])
        assert finding.severity is row.severity and row.source in finding.why
