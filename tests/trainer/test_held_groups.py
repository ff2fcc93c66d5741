"""Batches that are too large for one message."""

from __future__ import annotations

import pytest

from services.trainer.held_groups import HeldGroups
from tests.trainer.batches import random_batch
from trimaran.clients import trainer
from trimaran.errors import OutOfOrderError


def test_groups_are_held_in_their_places_until_another_step() -> None:
    groups = random_batch(1).groups
    held = HeldGroups()
    held.add(1, 2, groups[2:])
    with pytest.raises(
        OutOfOrderError, match=r"step 1: 2 of the 4 groups .* the first is number 0"
    ):
        held.take(1, 4)
    held.add(1, 0, groups[:2])
    held.add(1, 0, groups[:2])  # asked twice
    assert held.take(1, 4) == held.take(1, 4) == groups
    assert held.take(2, 0) == ()
    with pytest.raises(OutOfOrderError, match="step 2: 4 of the 4 groups"):
        held.take(2, 4)
    held.add(2, 3, groups[3:])
    with pytest.raises(OutOfOrderError, match="step 1"):
        held.take(1, 4)


def test_what_comes_late_pushes_out_nothing() -> None:
    groups = random_batch(1).groups
    held = HeldGroups()
    held.add(8, 0, groups)
    held.add(7, 0, groups[:1])
    assert held.take(8, 4) == groups


def test_groups_of_a_step_that_is_done_are_let_go() -> None:
    groups = random_batch(1).groups
    held = HeldGroups()
    held.add(8, 0, groups)
    held.done(8)
    held.add(8, 0, groups)  # by a controller that has started anew
    assert held._groups == {}
    assert held.take(8, 4) == ()  # asked again, where the connection broke after the answer
    held.add(9, 0, groups)
    held.done(8)
    assert held.take(9, 4) == groups
    held.done(9)  # ahead: 8 is still the held version, and may be asked for again
    held.add(8, 0, groups)
    assert held.take(8, 4) == ()


@pytest.mark.parametrize(
    ("sizes", "portions"),
    [
        ([], [[]]),
        ([4, 4, 2], [[0, 1, 2]]),
        ([4, 4, 4], [[0, 1], [2]]),
        ([30, 1, 30, 9, 1], [[0], [1], [2], [3, 4]]),
    ],
)
def test_portions_by_hand(
    sizes: list[int], portions: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "PORTION_BYTES", 10)
    assert [list(portion) for portion in trainer._portions(sizes)] == portions
