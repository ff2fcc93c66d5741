"""The table of source changes fits the source."""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import ROOT, node_of
from tests.mutations.table import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.promise)
def test_every_row_of_the_table_fits_the_source(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.text) == 1
    assert [node_of(test) for test in mutation.tests]
