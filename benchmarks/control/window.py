"""What another order would bring: a buffer in which late groups slip, for the simulation only.

A group that is issued while step s trains may train in any step up to s + max_lag + 1. This buffer
takes those that are due, and fills the batch with whichever others are ready, so it shows what an
order can bring within the same slots. But with all (max_lag + 1) x B slots in use, B groups fall due
at each step, so that none can slip. To leave them room, some slots stay empty.
"""

from __future__ import annotations

from typing import Any

from services.controller.buffer import Buffer
from trimaran.types import ScoredGroup


class WindowBuffer(Buffer):
    """`empty`: slots that are not used, as a share of a batch."""

    def __init__(self, empty: float, groups_per_step: int, max_lag: int, *rest: Any) -> None:
        super().__init__(groups_per_step, max_lag, *rest)
        self._num_slots -= round(empty * groups_per_step)
        self._max_lag, self._num_taken, self._num_live = max_lag, 0, 0
        self._due: dict[int, int] = {}
        """The last step in which the group may train."""

    async def take(self) -> tuple[ScoredGroup, ...]:
        async with self._batch:
            await self._batch.wait_for(self._batch_waits)
            numbers = self._choose()
            self._line = [number for number in self._line if number not in numbers]
            self._num_training += len(numbers)
            self._wanted -= len(numbers)
            self._num_taken += 1
            self._wake()
            return tuple(self._waiting.pop(number) for number in numbers)

    async def release(self) -> None:
        self._num_live += 1
        await super().release()

    def _next(self) -> int:
        number = super()._next()
        self._due[number] = self._num_live + self._max_lag + 1
        return number

    def _may_issue(self) -> bool:
        num_ahead = len(self._line)
        return num_ahead < self._wanted and num_ahead + self._num_training < self._num_slots

    def _batch_waits(self) -> bool:
        numbers = self._choose()
        return len(numbers) == self._groups_per_step and all(n in self._waiting for n in numbers)

    def _choose(self) -> list[int]:
        """Those that later steps would have no room for, then whoever is ready, the first due first."""
        line = sorted(self._line, key=lambda n: (self._due[n], n not in self._waiting))
        size, step = self._groups_per_step, self._num_taken + 1
        steps_left = [self._due[n] - step for n in line]
        num_due = max((i + 1 - size * left for i, left in enumerate(steps_left)), default=0)
        due = line[: max(0, num_due)]
        ready = [n for n in line[len(due) :] if n in self._waiting]
        return (due + ready)[:size]
