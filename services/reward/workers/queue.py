"""What waits in the pool, and how much of it a free process gets at once."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence

from services.reward.outcome import Fault, Outcome
from services.reward.terms import FunctionSpec
from trimaran.rewards import Sample

CHUNK_SECONDS = 0.05
MAX_CHUNK = 256


class Batch:
    """One call of a function, which waits for its outcomes."""

    def __init__(self, spec: FunctionSpec, samples: Sequence[Sample]) -> None:
        self.spec, self.samples = spec, samples
        loop = asyncio.get_running_loop()
        self.outcomes: asyncio.Future[tuple[Outcome, ...]] = loop.create_future()

    @property
    def is_wanted(self) -> bool:
        """False once it is settled, and when the caller has given up."""
        return not self.outcomes.done()

    def settle(self, outcomes: tuple[Outcome, ...]) -> None:
        """The first outcomes count: a batch that was given back may be judged twice."""
        if self.is_wanted:
            self.outcomes.set_result(outcomes)


def fault(batches: Iterable[Batch], reason: str) -> None:
    for batch in batches:
        batch.settle((Fault(reason),) * len(batch.samples))


class Queue:
    """Batches of all callers, in the order in which they came."""

    def __init__(self) -> None:
        self.waiting: deque[Batch] = deque()
        self._arrived = asyncio.Event()
        self._batch_seconds: dict[FunctionSpec, float] = {}

    def add(self, batches: Iterable[Batch]) -> None:
        self.waiting.extend(batches)
        self._arrived.set()

    async def take_chunk(self, num_takers: int) -> list[Batch]:
        """From the front, of one function; no more than a fair share of all that waits. Waits until
        there is something."""
        while not (chunk := self._take_chunk(num_takers)):
            self._arrived.clear()
            await self._arrived.wait()
        return chunk

    def give_back(self, chunk: list[Batch], start: int) -> None:
        """Those from `start` on leave the chunk and wait again, before all others."""
        if chunk[start:]:
            self.waiting.extendleft(reversed(chunk[start:]))
            del chunk[start:]
            self._arrived.set()

    def note_seconds(self, spec: FunctionSpec, seconds: float) -> None:
        """How long a batch took; 0 where it is not known."""
        if seconds:
            known = self._batch_seconds.get(spec, seconds)
            self._batch_seconds[spec] = 0.9 * known + 0.1 * seconds

    def _take_chunk(self, num_takers: int) -> list[Batch]:
        while self.waiting and not self.waiting[0].is_wanted:
            self.waiting.popleft()
        if not self.waiting:
            return []
        spec = self.waiting[0].spec
        fair = math.ceil(len(self.waiting) / num_takers)
        size = min(fair, self._chunk_size(spec))
        chunk: list[Batch] = []
        while self.waiting and len(chunk) < size and self.waiting[0].spec == spec:
            chunk.append(self.waiting.popleft())
        return [batch for batch in chunk if batch.is_wanted]

    def _chunk_size(self, spec: FunctionSpec) -> int:
        seconds = self._batch_seconds.get(spec, CHUNK_SECONDS)
        return max(1, min(MAX_CHUNK, int(CHUNK_SECONDS / seconds)))
