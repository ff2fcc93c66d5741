"""Each plant still fits the source that it changes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults_runs.moves import CASES
from tests.faults_runs.plants import PLANTS, Change, _Loader

CHANGES = [change for plant in PLANTS.values() for change in plant.changes]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.module)
def test_a_change_stands_once_in_the_source_and_compiles(change: Change):
    spec = find_spec(change.module)
    assert spec and spec.origin
    assert Path(spec.origin).read_text().count(change.old) == 1
    assert _Loader(change.module, spec.origin, [change]).get_code(change.module)


@pytest.mark.parametrize("name", PLANTS)
def test_there_are_faults_that_bring_a_plant_to_light(name: str):
    assert any(PLANTS[name].only in str(case) for case in CASES)
