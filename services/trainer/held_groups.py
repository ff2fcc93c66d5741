"""Groups of a batch that is too large for one message: they arrive before the batch does."""

from __future__ import annotations

from collections.abc import Sequence

from trimaran.errors import OutOfOrderError
from trimaran.types import ScoredGroup


class HeldGroups:
    """Of the next step's batch, on one rank, until those of another step arrive.

    Example:
        held = HeldGroups()
        held.add(step=8, first=0, groups=groups)
        held.take(step=8, count=len(groups)) == groups
    """

    def __init__(self) -> None:
        self._step = 0
        self._groups: dict[int, ScoredGroup] = {}
        """By place in the batch."""

    def add(self, step: int, first: int, groups: Sequence[ScoredGroup]) -> None:
        """What is sent twice is held once."""
        if step != self._step:
            self._step, self._groups = step, {}
        self._groups.update(enumerate(groups, first))

    def take(self, step: int, count: int) -> tuple[ScoredGroup, ...]:
        """The first `count` of the batch; they may be taken again. Raises OutOfOrderError when one of
        them has not come to this process."""
        groups = self._groups if step == self._step else {}
        if lacking := [place for place in range(count) if place not in groups]:
            raise OutOfOrderError(
                f"step {step}: {len(lacking)} of the {count} groups that were to come before their"
                f" batch are not here, the first is number {lacking[0]}; send them again"
            )
        return tuple(groups[place] for place in range(count))
