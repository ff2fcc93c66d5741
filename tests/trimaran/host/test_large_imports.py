"""Imports without the collector of cyclic garbage."""

import gc

import pytest

from trimaran.host.large_imports import large_imports


def test_the_collector_rests_inside_and_does_not_look_again_at_what_was_made() -> None:
    before, made = gc.get_freeze_count(), list[list[int]]()
    try:
        with pytest.raises(ImportError), large_imports():
            assert not gc.isenabled()
            made += ([] for _ in range(1000))
            raise ImportError
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(made)
    finally:
        gc.unfreeze()
