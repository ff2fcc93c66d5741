"""The line of groups between prompt and live weights.

    reserve ──▶ in flight ──▶ put ──▶ waiting ──▶ take ──▶ training ──▶ release
      ▲ ▲                      │        ▲                  │               │
      │ └─── skip: the slot ◀──┘        └─── give_back ◀───┤               │
      │         groups that are reissued   ◀───────────────┘               │
      └─────────────── slots: the new weights live ◀───────────────────────┘

A group holds a slot from `reserve` until the weights that it trained are live, and there are
(max_lag + 1) x groups_per_step slots. So when a group is issued, fewer than max_lag + 1 batches
stand before it, and its tokens are at most max_lag steps old when they train.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence, Set

from trimaran.types import ScoredGroup

CALM_STEPS = 8


class Buffer:
    """Hands out group numbers, and takes scored groups until a batch is whole.

    Example:
        buffer = Buffer(groups_per_step=1, max_lag=0, num_steps=3)
        number = await buffer.reserve()  # 0: the first prompt's
        await buffer.put(scored)         # once its group is generated and scored
        (scored,) = await buffer.take()  # the batch of the first step
        await buffer.release()           # its weights are live: number 1 may be issued
    """

    def __init__(
        self,
        groups_per_step: int,
        max_lag: int,
        num_steps: int,
        next_number: int = 0,
        reissued: Collection[int] = (),
        reused: Sequence[ScoredGroup] = (),
    ) -> None:
        """`num_steps`: those that the run still has to train.

        A resumed run has open groups. The numbers in `reissued` go out first; the groups in
        `reused` are scored already and wait for their batch.
        """
        self._groups_per_step = groups_per_step
        self._num_slots = (max_lag + 1) * groups_per_step
        self._wanted = num_steps * groups_per_step
        """Groups that the run still consumes: none is issued beyond the last step."""
        self._next_number = next_number
        self._reissued = deque(sorted(reissued))
        self._waiting = {scored.group.number: scored for scored in reused}
        self._line = sorted([*reissued, *self._waiting])
        self._num_ready = 0
        """Groups at the head of the line that wait: the trainer could take that many."""
        self._num_training = 0
        self._lead, self._num_calm = 1, 0
        self._is_interrupted = False
        lock = asyncio.Lock()
        self._room, self._batch = asyncio.Condition(lock), asyncio.Condition(lock)

    async def reserve(self) -> int:
        """The next number in prompt order, once a slot is free and work is not held back."""
        async with self._room:
            await self._room.wait_for(lambda: self._reissued or self._may_issue())
            number = self._next()
            self._wake()
            return number

    async def put(self, scored: ScoredGroup) -> None:
        async with self._batch:
            self._waiting[scored.group.number] = scored
            self._wake()

    async def skip(self, number: int) -> None:
        """The number leaves the line and its slot is free at once."""
        async with self._batch:
            self._line.remove(number)
            self._wake()

    async def take(self) -> tuple[ScoredGroup, ...]:
        """The next batch, in prompt order; nothing, once, where it was interrupted and no batch waits."""
        async with self._batch:
            self._adapt_lead()
            self._wake()
            await self._batch.wait_for(lambda: self._is_interrupted or self._batch_waits())
            self._is_interrupted = False
            if not self._batch_waits():
                return ()
            batch = self._line[: self._groups_per_step]
            del self._line[: self._groups_per_step]
            self._num_ready -= len(batch)
            self._num_training += len(batch)
            self._wanted -= len(batch)
            self._wake()
            return tuple(self._waiting.pop(number) for number in batch)

    async def give_back(self, batch: Sequence[ScoredGroup], reissued: Set[int]) -> None:
        """The batch just taken does not train yet: its groups have their places in the line again.

        Those whose numbers are in `reissued` go out at once, before any other.
        """
        async with self._batch:
            numbers = [scored.group.number for scored in batch]
            self._line = numbers + self._line
            self._num_ready = 0
            self._num_training -= len(numbers)
            self._wanted += len(numbers)
            self._waiting |= {s.group.number: s for s in batch if s.group.number not in reissued}
            self._reissued = deque(sorted([*self._reissued, *reissued]))
            self._wake()

    async def interrupt(self) -> None:
        """The task that takes, or will, has to do something first that the groups of its batch wait for."""
        async with self._batch:
            self._is_interrupted = True
            self._batch.notify()

    async def release(self) -> None:
        """The weights of the oldest batch that was taken are live; the next one may be in training."""
        async with self._batch:
            self._num_training -= self._groups_per_step
            self._wake()

    def _next(self) -> int:
        if self._reissued:
            return self._reissued.popleft()
        number = self._next_number
        self._next_number += 1
        self._line.append(number)
        return number

    def _wake(self) -> None:
        """One who reserves wakes the next, while there is room: all of them at once would make each
        change cost as much as there are slots."""
        if self._batch_waits():
            self._batch.notify()
        if self._reissued or self._may_issue():
            self._room.notify()

    def _may_issue(self) -> bool:
        num_ahead = len(self._line)
        if num_ahead >= self._wanted or num_ahead + self._num_training >= self._num_slots:
            return False
        return num_ahead < self._lead * self._groups_per_step

    def _adapt_lead(self) -> None:
        """How many batches stand before the trainer: as few as keep it busy, since each more makes
        its tokens a step older. One more after each wait, one less after CALM_STEPS without."""
        waits = not self._batch_waits()
        self._num_calm = 0 if waits else self._num_calm + 1
        if waits:
            self._lead = min(self._lead + 1, self._num_slots // self._groups_per_step)
        elif self._num_calm % CALM_STEPS == 0:
            self._lead = max(self._lead - 1, 1)

    def _batch_waits(self) -> bool:
        line, ready = self._line, self._num_ready
        while ready < len(line) and line[ready] in self._waiting:
            ready += 1
        self._num_ready = ready
        return ready >= self._groups_per_step
