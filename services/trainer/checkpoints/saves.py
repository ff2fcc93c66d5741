"""Checkpoints of all ranks, as rank 0 has them made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from services.trainer.other_ranks import OtherRanks
from services.trainer.rank import TrainerRank
from trimaran.errors import DeadlineError, InternalError, OutOfOrderError, TrimaranError
from trimaran.v1 import trainer_pb2
from trimaran.wire import messages as wire

logger = logging.getLogger(__name__)

SAVE_MARGIN_SECONDS = 5.0
"""Each rank's own deadline ends first, so that its error says what happened."""


class Saves:
    """On rank 0: checkpoints of all ranks, one at a time, which are written while training goes on.

    Every rank writes its part, from the weights and moments of the save's step. When all have, rank 0
    publishes the whole, or drops what was written where a rank has failed.
    """

    def __init__(self, rank: TrainerRank, others: OtherRanks, save_timeout: float) -> None:
        self._rank, self._others = rank, others
        self._timeout = save_timeout + SAVE_MARGIN_SECONDS
        self._beginning = asyncio.Lock()
        self._last: tuple[int, asyncio.Task[str]] | None = None
        """The step of the last save, and where it lies."""

    async def begin(self, request: trainer_pb2.SaveCheckpointRequest) -> None:
        """Returns once every rank has begun. Waits for the save before; what has begun is not begun
        again. A failure leaves the ranks as they are: training goes on."""
        step = request.step
        async with self._beginning:
            if self._last:
                saved, before = self._last
                if saved == step and not (before.done() and before.exception()):
                    return
                await asyncio.wait([before])  # each part of it has a deadline
            self._rank.check_save(step)
            begun = await self._others.begin_save(request, self._own_copy(step), self._timeout)
            ending = asyncio.create_task(self._end(request, begun))
            if any(begun):
                await ending
            ending.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._last = step, ending

    async def wait(self, step: int) -> str:
        """Where the checkpoint lies, also one that was loaded. Raises what went wrong, and OutOfOrderError
        unless it is the last."""
        last = self._last
        if last is None or last[0] != step:
            # Its copy may still be made, for a caller that has gone away.
            async with self._beginning:
                last = self._last
        if last and last[0] == step:
            return await asyncio.shield(last[1])
        if self._rank.saver.saved and self._rank.saver.saved[0] == step:
            return self._rank.saver.saved[1]
        raise OutOfOrderError(f"checkpoint of step {step}: no save of it has begun")

    async def finish(self) -> None:
        """Returns once none is under way: the last one is published or given up."""
        if self._last:
            await asyncio.wait([self._last[1]])

    async def _own_copy(self, step: int) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._rank.saver.begin(step)
        except TimeoutError:
            raise DeadlineError(
                f"checkpoint of step {step}: its copy took over {self._timeout:g} s (trainer.save_timeout)"
            ) from None

    async def _end(
        self,
        request: trainer_pb2.SaveCheckpointRequest,
        begun: Sequence[BaseException | None],
    ) -> str:
        step = request.step
        writers = {rank for rank, failure in enumerate(begun) if failure is None}
        try:
            asked = trainer_pb2.WaitCheckpointRequest(caller=request.caller, step=step)
            own = self._rank.saver.written(step)
            parts = await self._others.written(asked, writers, own, self._timeout)
            for answer in (*begun, *parts):
                if isinstance(answer, BaseException):
                    raise answer
            digests = [part for part in parts if isinstance(part, str) and part]
            ledger = wire.decode_ledger_end(request.ledger) if request.HasField("ledger") else None
            score = request.score if request.HasField("score") else None
            return await self._rank.saver.publish(digests, ledger, score)
        except Exception as error:
            await self._discard()
            if isinstance(error, TrimaranError):
                raise
            raise InternalError(f"checkpoint of step {step}: {error}") from error

    async def _discard(self) -> None:
        try:
            await self._rank.saver.discard()
        except Exception as error:
            logger.warning("an unfinished checkpoint stays until the next save or start: %s", error)
