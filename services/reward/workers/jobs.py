"""What waits in the pool: calls of `judge`, and their batches one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.reward.outcome import Fault, Outcome
from services.reward.terms import FunctionSpec
from trimaran.rewards import Sample

Batches = Sequence[Sequence[Sample]]


class Job:
    """One call of `judge`; `settled` when each of its batches has its outcomes."""

    def __init__(self, spec: FunctionSpec, batches: Batches) -> None:
        self.spec, self.batches = spec, batches
        self.outcomes: list[tuple[Outcome, ...] | None] = [None] * len(batches)
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_left = len(batches)

    def settle(self, place: int, outcomes: tuple[Outcome, ...]) -> None:
        self.outcomes[place] = outcomes
        self._num_left -= 1
        if not self._num_left:
            self.settled.set_result(None)


@dataclass(frozen=True, slots=True)
class Slot:
    """One batch of a job."""

    job: Job
    place: int

    @property
    def batch(self) -> Sequence[Sample]:
        return self.job.batches[self.place]

    @property
    def is_wanted(self) -> bool:
        """False also when the caller has given up."""
        return self.job.outcomes[self.place] is None and not self.job.settled.done()

    def settle(self, outcomes: tuple[Outcome, ...]) -> None:
        """The first outcomes count: a batch that was given back may be judged twice."""
        if self.is_wanted:
            self.job.settle(self.place, outcomes)


def fail(slots: Sequence[Slot], reason: str) -> None:
    for slot in slots:
        slot.settle((Fault(reason),) * len(slot.batch))
