"""Rules and functions in processes that can be killed: symbolic checkers hang, and a thread that
hangs cannot be stopped.

A *batch* is what a function is called with: one sample, or the whole group for functions that judge
groups. Batches are handed to a free process in *chunks* of some milliseconds of work, because
handing one over costs as much as checking a short answer (queue.py). The process writes down each
outcome before it goes on. When it dies, the batch at which it died is tried again, alone in a fresh
process (second_try.py). Those behind it go to other processes, as do those that a slow batch holds
up.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import Sequence

from services.reward.outcome import Outcome
from services.reward.terms import FunctionSpec
from services.reward.workers import worker
from services.reward.workers.process import (
    GRACE_SECONDS,
    MAX_CHUNKS,
    START_SECONDS,
    FunctionKind,
    WorkerError,
    WorkerProcess,
)
from services.reward.workers.queue import Batch, Queue, fault
from services.reward.workers.second_try import judge_again
from trimaran.errors import InputError
from trimaran.rewards import Sample

STUCK_SECONDS, STUCK_DEADLINES = 120.0, 3
"""What waits is faulted when the pool has judged nothing for so long, and for so many deadlines. A
long queue that moves is left to its caller: if the pool dropped the end of it, answers that hang
would push others out, and would pay."""

logger = logging.getLogger(__name__)


class WorkerPool:
    """Judges samples in `num_workers` processes.

    Example:
        async with WorkerPool(num_workers=2, timeout=10.0, memory_mib=4096) as pool:
            spec = FunctionSpec("services.reward.rules.numbers:last_integer")
            await pool.load([spec])
            outcomes = await pool.judge(spec, [Sample("It is 4.", answer="4")])  # (Value(1.0, {}, "4"),)
    """

    def __init__(
        self,
        num_workers: int,
        timeout: float,
        memory_mib: int,
        *,
        patience: float | None = None,
        grace_seconds: float = GRACE_SECONDS,
        max_chunks: int = MAX_CHUNKS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """`timeout`: seconds for one batch; `memory_mib`: address space of one process.

        `patience`: seconds without any judgement after which all that waits is faulted; None for
        what STUCK_SECONDS says. The others are WorkerProcess's.
        """
        self._processes = [
            WorkerProcess(timeout, memory_mib, grace_seconds, max_chunks, start_seconds)
            for _ in range(num_workers)
        ]
        self._patience = patience or max(STUCK_SECONDS, STUCK_DEADLINES * timeout)
        self._moved_at = 0.0
        self._num_busy = 0
        self._loops: list[asyncio.Task[None]] = []
        self._queue = Queue()
        self._kinds: dict[FunctionSpec, FunctionKind] = {}
        self._closed = False

    async def __aenter__(self) -> WorkerPool:
        self._loops = [asyncio.create_task(self._work(process)) for process in self._processes]
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._close())

    @property
    def num_waiting(self) -> int:
        """Batches."""
        return len(self._queue.waiting)

    @property
    def num_workers(self) -> dict[str, float]:
        """Processes that judge, and those that have nothing to do."""
        return {"busy": self._num_busy, "idle": len(self._processes) - self._num_busy}

    async def load(self, specs: Sequence[FunctionSpec]) -> None:
        """Import each in every process. Raises InputError for one that cannot be loaded or called."""
        context = multiprocessing.get_context("forkserver")
        modules = {worker.__name__, *(name for spec in specs for name in worker.preloads(spec))}
        context.set_forkserver_preload(sorted(modules))

        async def load_all(process: WorkerProcess) -> None:
            for spec in specs:
                self._kinds[spec] = await process.load(spec)

        try:
            await asyncio.gather(*(load_all(process) for process in self._processes))
        except WorkerError as error:
            raise InputError(str(error)) from None

    async def judge(self, spec: FunctionSpec, samples: Sequence[Sample]) -> tuple[Outcome, ...]:
        """One outcome a sample, in order; `spec` was loaded before.

        Raises nothing for a bad answer or process: the outcome says it.
        """
        if not samples:
            return ()
        one_by_one = self._kinds[spec].one_by_one
        groups = [(sample,) for sample in samples] if one_by_one else [tuple(samples)]
        batches = [Batch(spec, group) for group in groups]
        if self._closed:
            fault(batches, "the pool was closed")
        self._queue.add(batches)
        try:
            await self._settle(batches)
        finally:
            for batch in batches:
                batch.outcomes.cancel()  # where the caller gives up
        return tuple(outcome for batch in batches for outcome in batch.outcomes.result())

    async def _settle(self, batches: Sequence[Batch]) -> None:
        """Until each has its outcomes."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        left = {batch.outcomes for batch in batches}
        while left:
            patience = max(began, self._moved_at) + self._patience - loop.time()
            if patience <= 0:
                reason = f"overloaded: the pool has judged nothing for {self._patience:g} s"
                fault(set(self._queue.waiting).intersection(batches), reason)
                patience = self._patience  # for those under way, which have deadlines
            _, left = await asyncio.wait(left, timeout=patience)

    async def _work(self, process: WorkerProcess) -> None:
        """One of these a process, until it is cancelled."""
        while True:
            chunk = await self._queue.take_chunk(len(self._processes))
            self._num_busy += 1
            try:
                await self._judge_chunk(process, chunk)
            except asyncio.CancelledError:
                fault(chunk, "the pool was closed")
                raise
            except WorkerError as error:
                fault(chunk, str(error))
            except Exception as error:
                logger.exception("unforeseen error in the pool")
                fault(chunk, f"the pool failed: {type(error).__name__}: {error}")
            finally:
                self._num_busy -= 1

    async def _judge_chunk(self, process: WorkerProcess, chunk: list[Batch]) -> None:
        """Takes out of `chunk` what it gives back. Raises WorkerError."""
        spec, batches = chunk[0].spec, tuple(chunk)
        stalled = asyncio.get_running_loop().call_later(
            worker.STALL_SECONDS, lambda: self._queue.give_back(chunk, process.num_judged + 1)
        )
        try:
            judged = await process.judge(spec, [batch.samples for batch in batches])
        finally:
            stalled.cancel()
        num_judged = len(judged.outcomes)
        self._moved_at = asyncio.get_running_loop().time()
        for batch, outcomes in zip(batches, judged.outcomes, strict=False):
            batch.settle(outcomes)
        self._queue.note_seconds(spec, judged.seconds / max(1, num_judged))
        self._queue.give_back(chunk, num_judged + bool(judged.failure))
        if judged.failure and len(chunk) > num_judged and (failed := chunk[-1]).is_wanted:
            splittable = self._kinds[spec].splittable
            failed.settle(await judge_again(process, spec, failed.samples, splittable))

    async def _close(self) -> None:
        self._closed = True
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        fault(self._queue.waiting, "the pool was closed")
        await asyncio.gather(*(process.close() for process in self._processes))
