"""Groups of a batch that is too large for one message: they arrive before the batch does."""

from __future__ import annotations

from collections.abc import Sequence

from trimaran.errors import OutOfOrderError
from trimaran.types import ScoredGroup


class HeldGroups:
    """Of the next step's batch, on rank 0, until that step is done or those of a later one arrive.

    Example:
        held = HeldGroups()
        held.add(step=8, first=0, groups=groups)
        held.take(step=8, count=len(groups)) == groups
        held.done(step=8)
    """

    def __init__(self) -> None:
        self._step = 0
        self._groups: dict[int, ScoredGroup] = {}
        """By place in the batch."""
        self._done = 0
        """The step that has trained."""

    def add(self, step: int, first: int, groups: Sequence[ScoredGroup]) -> None:
        """What is sent twice is held once. What comes late, for a step before the held one or one that
        is done, is left out."""
        if step < self._step or step <= self._done:
            return
        if step > self._step:
            self._step, self._groups = step, {}
        self._groups.update(enumerate(groups, first))

    def take(self, step: int, count: int) -> tuple[ScoredGroup, ...]:
        """The first `count` of the batch; they may be taken again. None of a step that has trained, as
        who asks for it again gets what it has made: also of the one before a step that was trained
        ahead. Raises OutOfOrderError when one of them has not come to this process."""
        if self._done and step <= self._done:
            return ()
        groups = self._groups if step == self._step else {}
        if lacking := [place for place in range(count) if place not in groups]:
            raise OutOfOrderError(
                f"step {step}: {len(lacking)} of the {count} groups that were to come before their"
                f" batch are not here, the first is number {lacking[0]}; send them again"
            )
        return tuple(groups[place] for place in range(count))

    def done(self, step: int) -> None:
        """It has trained, and its groups are let go."""
        self._done = max(self._done, step)
        if self._step <= self._done:
            self._groups = {}
