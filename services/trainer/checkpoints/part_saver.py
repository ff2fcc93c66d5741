"""How a rank saves its part of a checkpoint while training goes on."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from services.trainer.checkpoints.checkpoint import Keep, TrainerState
from services.trainer.checkpoints.checkpoints import Checkpoints
from services.trainer.exchange.host_copy import HostCopy
from trimaran.config import RunConfig
from trimaran.errors import OutOfOrderError
from trimaran.host.call_thread import Disk
from trimaran.types import LedgerEnd


@dataclass(frozen=True, slots=True)
class PartWrite:
    """The writing of a part, which may be under way."""

    state: TrainerState
    """Still without digests."""
    digest: asyncio.Task[str]
    """The part's; empty where another rank saves the same."""


class PartSaver:
    """Example: await saver.begin(10); await saver.publish([await saver.written(10)])"""

    def __init__(
        self,
        config: RunConfig,
        rank: int,
        checkpoints: Checkpoints,
        copy: Callable[[int], Awaitable[tuple[TrainerState, HostCopy]]],
    ) -> None:
        """`copy`: of a step, what the trainer's state is and what this rank saves of it. Raises OutOfOrderError
        unless that step is the current one."""
        self._checkpoints, self._copy = checkpoints, copy
        self._file = config.trainer.checkpoint_file(rank)
        self._keep = Keep(config.run.keep_checkpoints, config.run.keep_best)
        self._disk = Disk("checkpoints", config.trainer.save_timeout, "trainer.save_timeout")
        self._beginning = asyncio.Lock()
        self._last: PartWrite | None = None
        self._unwritten = HostCopy({})
        """What the last save may still read."""
        self.saved: tuple[int, str] | None = None
        """Step and place of the newest checkpoint."""
        self.ledger: LedgerEnd | None = None
        """The run's ledger as the newest checkpoint has it."""

    @property
    def writes(self) -> bool:
        """Whether this rank saves something, not another rank the same."""
        return self._file is not None

    def check(self, step: int) -> None:
        """Raises UnavailableError while the write of an earlier checkpoint hangs."""
        self._disk.check(_name(step))

    async def begin(self, step: int) -> None:
        """Begins to write this rank's part of a checkpoint. Waits for the part before; ranks do not wait for
        each other here."""
        await asyncio.shield(asyncio.create_task(self._begin(step)))

    async def written(self, step: int) -> str:
        """The digest of this rank's part once it is on the disk; empty for a rank whose state another
        one saves. Raises OutOfOrderError unless it is that of the last save."""
        if self._last is None or self._last.state.step != step:
            raise OutOfOrderError(f"{_name(step)}: no save of it has begun")
        return await asyncio.shield(self._last.digest)

    async def publish(
        self, shards: Sequence[str], ledger: LedgerEnd | None = None, score: float | None = None
    ) -> str:
        """On rank 0, once all ranks have written their parts, with their digests. Training may have gone on
        since. Where the checkpoint lies."""
        assert self._last, "begin comes first"
        state = replace(self._last.state, shards=tuple(shards), ledger=ledger, score=score)
        place = await self._disk.do(
            lambda: self._checkpoints.publish(state, self._keep), _name(state.step)
        )
        self.saved, self.ledger = (state.step, place), ledger
        return place

    async def discard(self) -> None:
        """On rank 0, after a failure: what was written of it goes, what stood before stays."""
        await self._disk.do(self._checkpoints.tidy, "removal of an unfinished checkpoint")

    def detach(self) -> None:
        """Before weights or moments change: copies to the host what the last save has not written yet."""
        self._unwritten.detach()

    def close(self) -> None:
        self._disk.close(0.0)

    async def _begin(self, step: int) -> None:
        async with self._beginning:
            if self._last:
                await asyncio.wait([self._last.digest])  # which has a deadline of its own
            state, copies = await self._copy(step)
            self._unwritten = copies
            writing = asyncio.create_task(self._write(step, copies))
            # Looks at an error for which no caller may ask.
            writing.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._last = PartWrite(state, writing)

    async def _write(self, step: int, copies: HostCopy) -> str:
        if (number := self._file) is None:
            return ""

        def write() -> str:
            try:
                return self._checkpoints.write_shard(step, number, copies)
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # they have parts of the copy, too
                raise
            finally:
                copies.clear()  # a kept error would keep them

        return await self._disk.do(write, _name(step))


def _name(step: int) -> str:
    return f"checkpoint of step {step}"
