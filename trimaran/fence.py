"""Fencing: a controller that was replaced can do no harm.

Each start of a controller draws a number, its *epoch*, from the run's store. Every request carries
it, and a service that has seen a newer one refuses the older.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from functools import partial

from trimaran import errors
from trimaran.call_thread import CallThread
from trimaran.types import Caller

MAX_EPOCH = 2**62
"""A run's store counts in int64."""
Issued = Callable[[str], int | None]
ISSUED_SECONDS = 30.0
"""For the store to say which epoch is the newest."""


class EpochFence:
    """Refuses callers whose epoch is older than the newest seen for their run.

    Controllers draw their epochs from the run's store. Where a service can ask
    it, an epoch that was never drawn is refused too: one call with a huge number
    would otherwise lock every later controller out.

    Example:
        fence = EpochFence()
        await fence.check(Caller("addition-1", epoch=2))
        await fence.check(Caller("addition-1", epoch=1))  # raises StaleEpochError
    """

    def __init__(
        self, issued: Issued = lambda run_id: None, timeout: float = ISSUED_SECONDS
    ) -> None:
        """`issued`: the newest epoch that was drawn for a run; None where nobody can say.

        It is asked in a thread, once for each newer epoch, for `timeout` seconds at most.
        """
        self._issued = issued
        self._timeout = timeout
        # Of its own: a disk that hangs must not use up the threads that others work in.
        self._asking = CallThread("epochs")
        self._newest: dict[str, int] = {}

    async def check(self, caller: Caller) -> None:
        if caller.epoch > MAX_EPOCH:
            raise errors.InputError(f"epoch {caller.epoch}: no epoch is larger than {MAX_EPOCH}")
        newest = self._newest.get(caller.run_id)
        if newest is None or caller.epoch > newest:
            newest = max(await self._learn(caller), self._newest.get(caller.run_id, 0))
            self._newest[caller.run_id] = newest
        if caller.epoch < newest:
            raise errors.StaleEpochError(
                f"run {caller.run_id}: epoch {caller.epoch} was replaced by {newest};"
                " another controller has taken over, stop this one"
            )

    async def _learn(self, caller: Caller) -> int:
        """The newest epoch of the caller's run. Raises InputError when the caller's is not one."""
        ask = partial(self._issued, caller.run_id)
        try:
            if self._asking.hangs:
                raise errors.DeadlineError("an earlier question still hangs")
            issued = await asyncio.to_thread(self._asking.call, ask, self._timeout)
        except errors.DeadlineError:
            raise errors.UnavailableError(
                f"the run's store has not answered for {self._timeout:g} s; see that its disk works"
            ) from None
        except sqlite3.Error as error:
            raise errors.UnavailableError(f"the run's store cannot be read: {error}") from error
        if issued is None:
            return caller.epoch
        if not 0 < caller.epoch <= issued:
            raise errors.InputError(
                f"run {caller.run_id}: epoch {caller.epoch} was never drawn;"
                f" the newest of this run is {issued}"
            )
        return issued
