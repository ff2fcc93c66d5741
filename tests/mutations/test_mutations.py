"""The table of source changes fits the source."""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import ROOT
from tests.mutations.table import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.promise)
def test_every_row_of_the_table_fits_the_source(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.text) == 1
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()
