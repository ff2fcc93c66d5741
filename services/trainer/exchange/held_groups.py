"""Rank 0's store for the groups of the next step, which arrive before the step is asked for."""

from __future__ import annotations

from collections.abc import Iterable

from trimaran.errors import OutOfOrderError


class HeldGroups:
    """The payloads of the next step's batch.

    Example:
        held = HeldGroups()
        held.add(step=8, first=0, payloads=payloads)
        held.take(step=8, count=len(payloads)) == payloads
        held.drop()
    """

    def __init__(self) -> None:
        self._step = 0
        self._payloads: dict[int, bytes] = {}
        """By place in the batch."""

    def add(self, step: int, first: int, payloads: Iterable[bytes]) -> None:
        """A portion of the batch; one that is sent twice is held once. Those of another step are dropped."""
        if step != self._step:
            self._step, self._payloads = step, {}
        self._payloads.update(enumerate(payloads, first))

    def take(self, step: int, count: int) -> list[bytes]:
        """The first `count` of the batch; they may be taken again until they are dropped. Raises OutOfOrderError
        when one of them has not come to this process."""
        payloads = self._payloads if step == self._step else {}
        if lacking := [place for place in range(count) if place not in payloads]:
            raise OutOfOrderError(
                f"step {step}: {len(lacking)} of the {count} groups that were to come before their"
                f" batch are not here, the first is number {lacking[0]}; send them again"
            )
        return [payloads[place] for place in range(count)]

    def drop(self) -> None:
        """For a step that has begun: the rank has its batch, and is not given it again."""
        self._payloads = {}
