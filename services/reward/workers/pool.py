"""Rules and functions in processes that can be killed: symbolic checkers hang, and threads cannot
be stopped.

What waits is handed to a free process in chunks of some milliseconds, because handing it over costs
as much as checking a short answer. The process writes down each outcome before it goes on; when it
dies, the batch at which it died is tried once more, alone in a fresh process, and those behind it
go to others, as do those that a slow batch holds up. A batch is one sample, or the whole group for
functions that judge groups.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
from collections import deque
from collections.abc import Sequence

from services.reward.outcome import Fault, Indigestible, Outcome
from services.reward.terms import FunctionSpec
from services.reward.workers import worker
from services.reward.workers.jobs import Job, Slot, fail
from services.reward.workers.process import Kind, MemberError, WorkerProcess
from trimaran.errors import InputError
from trimaran.rewards import Sample

STUCK_SECONDS, STUCK_DEADLINES = 120.0, 3
"""What waits is faulted when the pool has judged nothing for so long, and for so many deadlines. A
long queue that moves is the caller's to give up: were its tail dropped, hanging in numbers would
pay."""
CHUNK_SECONDS = 0.05
MAX_CHUNK = 256

logger = logging.getLogger(__name__)


class WorkerPool:
    """`num_workers` processes. Use it as `async with WorkerPool(…) as pool`, and load before you judge."""

    def __init__(self, num_workers: int, timeout: float, memory_mib: int) -> None:
        self._members = [WorkerProcess(timeout, memory_mib) for _ in range(num_workers)]
        self._patience = max(STUCK_SECONDS, STUCK_DEADLINES * timeout)
        self._moved_at = 0.0
        self._loops: list[asyncio.Task[None]] = []
        self._waiting: deque[Slot] = deque()
        self._arrived = asyncio.Event()
        self._kinds: dict[FunctionSpec, Kind] = {}
        self._batch_seconds: dict[FunctionSpec, float] = {}
        self._closed = False

    async def __aenter__(self) -> WorkerPool:
        self._loops = [asyncio.create_task(self._work(member)) for member in self._members]
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    async def load(self, specs: Sequence[FunctionSpec]) -> None:
        """Import each in every worker. Raises InputError for one that cannot be loaded or called."""
        context = multiprocessing.get_context("forkserver")
        modules = {worker.__name__, *(name for spec in specs for name in worker.preloads(spec))}
        context.set_forkserver_preload(sorted(modules))

        async def load_all(member: WorkerProcess) -> None:
            for spec in specs:
                self._kinds[spec] = await member.load(spec)

        try:
            await asyncio.gather(*(load_all(member) for member in self._members))
        except MemberError as error:
            raise InputError(str(error)) from None

    async def judge(self, spec: FunctionSpec, samples: Sequence[Sample]) -> tuple[Outcome, ...]:
        """In order. Raises nothing for a bad answer or worker: the outcome says it."""
        one_by_one = self._kinds[spec].one_by_one
        batches = [(sample,) for sample in samples] if one_by_one else [tuple(samples)]
        if not samples:
            return ()
        job = Job(spec, batches)
        slots = [Slot(job, place) for place in range(len(batches))]
        if self._closed:
            fail(slots, "the pool was closed")
        self._waiting.extend(slots)
        self._arrived.set()
        try:
            await self._settle(job)
        finally:
            job.settled.cancel()  # where the caller gives up: nobody wants it any more
        return tuple(outcome for outcomes in job.outcomes for outcome in outcomes or ())

    async def _settle(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not job.settled.done():
            patience = max(began, self._moved_at) + self._patience - loop.time()
            if patience <= 0:
                reason = f"overloaded: the pool has judged nothing for {self._patience:g} s"
                fail([slot for slot in self._waiting if slot.job is job], reason)
                patience = self._patience  # for those under way, which have deadlines
            await asyncio.wait([job.settled], timeout=patience)

    async def _work(self, member: WorkerProcess) -> None:
        """One of these a member, until it is cancelled."""
        while True:
            while not (slots := self._take_chunk()):
                self._arrived.clear()
                await self._arrived.wait()
            try:
                await self._judge_chunk(member, slots)
            except asyncio.CancelledError:
                fail(slots, "the pool was closed")
                raise
            except MemberError as error:
                fail(slots, str(error))
            except Exception as error:
                logger.exception("unforeseen error in the pool")
                fail(slots, f"the pool failed: {type(error).__name__}: {error}")

    def _take_chunk(self) -> list[Slot]:
        """From the front, of one function; no more than a fair share of all that waits."""
        while self._waiting and not self._waiting[0].is_wanted:
            self._waiting.popleft()
        if not self._waiting:
            return []
        spec = self._waiting[0].job.spec
        fair = math.ceil(len(self._waiting) / len(self._members))
        size = min(fair, self._chunk_size(spec))
        slots: list[Slot] = []
        while self._waiting and len(slots) < size and self._waiting[0].job.spec == spec:
            slots.append(self._waiting.popleft())
        return [slot for slot in slots if slot.is_wanted]

    async def _judge_chunk(self, member: WorkerProcess, slots: list[Slot]) -> None:
        """Takes out of `slots` what it gives back. Raises MemberError."""
        spec = slots[0].job.spec
        chunk = list(slots)
        stalled = asyncio.get_running_loop().call_later(
            worker.STALL_SECONDS, lambda: self._give_back(slots, member.num_judged + 1)
        )
        try:
            judged = await member.judge(spec, [slot.batch for slot in chunk])
        finally:
            stalled.cancel()
        num_judged = len(judged.outcomes)
        self._moved_at = asyncio.get_running_loop().time()
        for slot, outcomes in zip(chunk, judged.outcomes, strict=False):
            slot.settle(outcomes)
        self._note_seconds(spec, judged.seconds / max(1, num_judged))
        self._give_back(slots, num_judged + bool(judged.failure))
        if judged.failure and len(slots) > num_judged and slots[-1].is_wanted:
            slots[-1].settle(await self._judge_again(member, spec, slots[-1].batch))

    async def _judge_again(
        self, member: WorkerProcess, spec: FunctionSpec, batch: Sequence[Sample]
    ) -> tuple[Outcome, ...]:
        """After the first failure. Raises MemberError."""
        judged = await member.judge(spec, [batch], fresh=True)
        if not judged.failure:
            return judged.outcomes[0]
        if len(batch) == 1:
            return (Indigestible(judged.failure),)
        outcomes: list[Outcome] = []
        for sample in batch:
            alone = await member.judge(spec, [(sample,)], fresh=True)
            outcomes += [Indigestible(alone.failure)] if alone.failure else alone.outcomes[0]
        if self._kinds[spec].splittable:
            return tuple(outcomes)
        return await self._judge_without(member, spec, batch, outcomes)

    async def _judge_without(
        self,
        member: WorkerProcess,
        spec: FunctionSpec,
        batch: Sequence[Sample],
        alone: Sequence[Outcome],
    ) -> tuple[Outcome, ...]:
        """Of a function that judges a group as a whole: those that failed alone are to blame, and
        the others are judged as the group that is left. Raises MemberError."""
        to_blame = [isinstance(outcome, Indigestible) for outcome in alone]
        others = [sample for sample, is_bad in zip(batch, to_blame, strict=True) if not is_bad]
        judged = await member.judge(spec, [others], fresh=True) if others else None
        if judged is None or judged.failure or len(others) == len(batch):
            reason = judged.failure if judged else "it fails on each answer alone as well"
            text = f"{spec.target} failed on a group, whoever's answer it was: {reason}"
            return (Fault(text),) * len(batch)
        left = iter(judged.outcomes[0])
        return tuple(
            outcome if is_bad else next(left)
            for outcome, is_bad in zip(alone, to_blame, strict=True)
        )

    def _give_back(self, slots: list[Slot], start: int) -> None:
        """Those from `start` on wait again, before all others."""
        if slots[start:]:
            self._waiting.extendleft(reversed(slots[start:]))
            del slots[start:]
            self._arrived.set()

    def _chunk_size(self, spec: FunctionSpec) -> int:
        seconds = self._batch_seconds.get(spec, CHUNK_SECONDS)
        return max(1, min(MAX_CHUNK, int(CHUNK_SECONDS / seconds)))

    def _note_seconds(self, spec: FunctionSpec, seconds: float) -> None:
        if seconds:
            known = self._batch_seconds.get(spec, seconds)
            self._batch_seconds[spec] = 0.9 * known + 0.1 * seconds

    async def _close(self) -> None:
        self._closed = True
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        fail(list(self._waiting), "the pool was closed")
        await asyncio.gather(*(member.close() for member in self._members))
