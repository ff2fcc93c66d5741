"""Checkpoints of the trainer, which writes them while the run goes on.

    begin    the trainer copies its state; the next step may begin
    …        it writes the copy
    end      the ledger records the checkpoint, people are told, and what no resume needs any more goes

A save that fails or hangs is told when that is known, and the run goes on: it can be resumed from the
checkpoint before.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from services.controller.best import score_of
from services.controller.ledger import RunLedger
from services.controller.records import Checkpointed
from services.controller.report import Reporter
from trimaran.clients import TrainerClient
from trimaran.config import RunConfig
from trimaran.errors import StaleEpochError, TrimaranError

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
    _ending: asyncio.Task[None] | None = field(default=None, init=False)

    async def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Returns once the trainer may go on; `tasks` end with the save. Waits for the save before."""
        await self.ended()
        if (step := await self._begin()) is not None:
            self._ending = tasks.create_task(self._end(step))

    async def save(self) -> None:
        """Returns once it is written and what it makes needless is gone, or it has failed."""
        await self.ended()
        if (step := await self._begin()) is not None:
            await self._end(step)

    async def make_room(self) -> None:
        """For payloads: the save under way may be enough, else there is another. Neither can be written
        beside the next step, which has no room."""
        await self.ended()
        if self.ledger.is_nearly_full:
            await self.save()

    async def ended(self) -> None:
        """Returns when no save is under way."""
        if self._ending:
            await asyncio.wait([self._ending])

    async def _begin(self) -> int | None:
        """The step; None where there is nothing to wait for."""
        step, state = self.ledger.state.step, self.ledger.state
        if state.checkpoints and state.checkpoints[-1] == step:
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

    async def _end(self, step: int) -> None:
        # The parts of all ranks, then the whole.
        timeout = 2 * self.config.trainer.save_timeout + MARGIN_SECONDS
        try:
            path = await self.trainer.wait_checkpoint(step, timeout)
        except StaleEpochError:
            raise
        except TrimaranError as error:
            self._failed(step, error)
            return
        state = self.ledger.state
        kept = [*state.checkpoints, step][-self.config.run.keep_checkpoints :]
        self.ledger.record(Checkpointed(step, path, kept[0]))
        self.reporter.checkpoint(step, path, state.root_at(step))
        await self.ledger.collect()

    def _failed(self, step: int, error: TrimaranError) -> None:
        newest = max(self.ledger.state.checkpoints, default=None)
        self.reporter.checkpoint_failed(step, str(error), newest)
