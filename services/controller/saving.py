"""Checkpoints of the trainer, which writes them while the run goes on.

    begin    the trainer copies its state; the next step may begin
    …        it writes the copy
    end      the ledger records the checkpoint, an event says so, and what no resume needs any more goes

A save that fails or hangs is reported when that is known, and the run goes on: it can be resumed from the
checkpoint before. A run that fails meanwhile ends once the checkpoint is written: a resume begins there.
A controller that dies meanwhile leaves it to the next one, which takes it up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.controller.reporting.report import Reporter
from services.controller.validation.best import score_of
from trimaran.clients import TrainerClient
from trimaran.config import RunConfig
from trimaran.errors import OutOfOrderError, StaleEpochError, TrimaranError
from trimaran.ledger.ledger import RunLedger
from trimaran.ledger.records import Checkpointed
from trimaran.ledger.state import Stage

logger = logging.getLogger(__name__)

MARGIN_SECONDS = 30.0


@dataclass(slots=True)
class CheckpointSaver:
    """One save at a time.

    Example:
        async with asyncio.TaskGroup() as tasks:
            await saver.begin(tasks)  # and train on
        await saver.save()            # the last one is waited for
    """

    config: RunConfig
    ledger: RunLedger
    trainer: TrainerClient
    reporter: Reporter
    came_at: int = 0
    """The step at which the trainer stood as this controller came."""
    _ending: asyncio.Task[None] | None = field(default=None, init=False)
    _failed_step: int | None = field(default=None, init=False)
    """Step of the last save that failed."""

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Returns once the trainer may go on; `tasks` end with the save. Waits for the save before."""
        await self.ended()
        if (step := await self._begin()) is not None:
            self._end_within(tasks, self._end(step))

    def take_up(self, tasks: asyncio.TaskGroup) -> None:
        """The save that the controller before this one may have begun; `tasks` end with it. Steps may have
        followed it, also the next one that is to be saved: that save waits for this one."""
        every = self.config.run.checkpoint_every
        newest = max(self.ledger.state.checkpoints, default=0)
        last = self.came_at - self.came_at % every
        steps = sorted(step for step in {last - every, last, self.came_at} if step > newest)
        if steps:
            self._end_within(tasks, self._end_unheard(steps))

    async def save(self) -> None:
        """Returns once it is written and what it makes needless is gone, or it has failed."""
        await self.ended()
        if (step := await self._begin()) is not None:
            await self._end(step)

    async def make_room(self) -> None:
        """For payloads: the save under way may be enough, else there is another. Neither can be written
        beside the next step, which has no room. One that has failed is tried again while groups wait."""
        await self.ended()
        is_new = self._failed_step != self.ledger.state.step
        if self.ledger.is_short or (self.is_nearly_full and is_new):
            await self.save()

    @property
    def is_saved(self) -> bool:
        """Whether the newest step has a checkpoint."""
        state = self.ledger.state
        return bool(state.checkpoints) and state.checkpoints[-1] == state.step

    @property
    def is_nearly_full(self) -> bool:
        """Whether three quarters of the quota are used, or it may have no room for the next step. What may be scored
        in it: what has a slot and is not scored, and what comes in the place of a batch."""
        run, groups = self.config.run, self.ledger.state.groups.values()
        num_scored = sum(entry.stage in (Stage.SCORED, Stage.CONSUMED) for entry in groups)
        num_slots = (run.max_lag + 1) * run.groups_per_step
        num_more = max(num_slots - num_scored, 0.5 * run.groups_per_step)
        # The oldest checkpoint has to leave before its payloads.
        num_more += run.keep_checkpoints * run.groups_per_step
        return self.ledger.is_filled(0.75) or self.ledger.is_filled(1.0, num_more)

    async def ended(self) -> None:
        """Returns when no save is under way."""
        if self._ending:
            await asyncio.wait([self._ending])

    async def ended_after(self, error: BaseException) -> None:
        """The run has failed with `error`: the save under way has as long as any other. A controller that was
        replaced leaves it to the trainer, and so does one that was asked to stop as its tasks ended."""
        if self._ending is None or self._ending.done() or isinstance(error, StaleEpochError):
            return
        if (task := asyncio.current_task()) and task.cancelling():
            return
        seconds = self._write_seconds
        self.reporter.failing(str(error) or type(error).__name__, seconds)
        done, _ = await asyncio.wait([self._ending], timeout=seconds)
        if done and (failure := self._ending.exception()):
            logger.warning("the checkpoint is not in the run's record: %s", failure)

    async def close(self) -> None:
        """Leaves no task behind."""
        if self._ending:
            self._ending.cancel()
            await asyncio.gather(self._ending, return_exceptions=True)

    async def _begin(self) -> int | None:
        """The step; None where there is nothing to wait for."""
        step = self.ledger.state.step
        if self.is_saved:
            return None
        # A save that a controller before this one began: the parts of all ranks, the whole. Then the copy.
        timeout = 3 * self.config.trainer.save_timeout + MARGIN_SECONDS
        score = score_of(self.config.run, step, self.reporter.values_of(step))
        try:
            await self.trainer.begin_checkpoint(step, timeout, self.ledger.durable, score)
        except StaleEpochError:
            raise
        except TrimaranError as error:
            self._failed(step, error)
            return None
        return step

    def _end_within(self, tasks: asyncio.TaskGroup, end: Coroutine[Any, Any, None]) -> None:
        """Not as one of `tasks`, which would cancel it where another fails."""
        self._ending = asyncio.create_task(end)
        tasks.create_task(_watch(self._ending))

    async def _end_unheard(self, steps: Sequence[int]) -> None:
        """The trainer knows of one of them at most, or of none."""
        for step in steps:
            await self._end(step, has_begun=False)

    async def _end(self, step: int, has_begun: bool = True) -> None:
        """`has_begun`: False where the trainer may know of no such save."""
        try:
            with self.reporter.doing(f"writing the checkpoint of step {step}"):
                path = await self.trainer.wait_checkpoint(step, self._write_seconds)
        except StaleEpochError:
            raise
        except TrimaranError as error:
            if has_begun or not isinstance(error, OutOfOrderError):
                self._failed(step, error)
            return
        state = self.ledger.state
        kept = [*state.checkpoints, step][-self.config.run.keep_checkpoints :]
        self.ledger.record(Checkpointed(step, path, kept[0]))
        self.reporter.checkpoint(step, path, state.root_at(step))
        await self.ledger.collect()

    @property
    def _write_seconds(self) -> float:
        """The parts of all ranks, then the whole."""
        return 2 * self.config.trainer.save_timeout + MARGIN_SECONDS

    def _failed(self, step: int, error: TrimaranError) -> None:
        self._failed_step = step
        newest = max(self.ledger.state.checkpoints, default=None)
        self.reporter.checkpoint_failed(step, str(error), newest)


async def _watch(ending: asyncio.Task[None]) -> None:
    """Raises what it raises. A caller that gives this up leaves the save going."""
    await asyncio.shield(ending)
