"""Groups that arrive in portions before their step."""

from __future__ import annotations

import pytest

from services.trainer.exchange.held_groups import HeldGroups
from trimaran.clients import trainer
from trimaran.errors import OutOfOrderError


def test_groups_are_held_in_their_places_until_another_step() -> None:
    payloads = [b"a", b"b", b"c", b"d"]
    held = HeldGroups()
    held.add(1, 2, payloads[2:])
    with pytest.raises(
        OutOfOrderError, match=r"step 1: 2 of the 4 groups .* the first is number 0"
    ):
        held.take(1, 4)
    held.add(1, 0, payloads[:2])
    held.add(1, 0, payloads[:2])  # asked twice
    assert held.take(1, 4) == held.take(1, 4) == payloads
    with pytest.raises(OutOfOrderError, match="step 2: 4 of the 4 groups"):
        held.take(2, 4)
    held.add(2, 3, payloads[3:])
    with pytest.raises(OutOfOrderError, match="step 1"):
        held.take(1, 4)


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
