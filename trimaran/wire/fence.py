"""Fencing: a controller that was replaced can do no harm.

Each start of a controller draws a number, its *epoch*, from the run's store. Every request carries
it, and a service that has seen a newer one refuses the older.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from trimaran import errors
from trimaran.store import LostWritesError
from trimaran.types import Caller

MAX_EPOCH = 2**62
"""A run's store counts in int64."""
Issued = Callable[[str], Awaitable[int | None]]
ISSUED_SECONDS = 30.0
"""For the store to say which epoch is the newest."""


async def no_epochs(run_id: str) -> None:
    """An `Issued` for services that no store stands behind."""


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

    def __init__(self, issued: Issued = no_epochs, timeout: float = ISSUED_SECONDS) -> None:
        """`issued`: the newest epoch that was drawn for a run; None where that is not known.

        It is asked once for each newer epoch, for `timeout` seconds at most.
        """
        self._issued = issued
        self._timeout = timeout
        self._newest: dict[str, int] = {}

    async def check(self, caller: Caller) -> None:
        """Raises StaleEpochError for an older controller, InputError for an epoch that was never
        drawn, and LostWritesError where the store knows less than this service has met."""
        if caller.epoch > MAX_EPOCH:
            raise errors.InputError(f"epoch {caller.epoch}: no epoch is larger than {MAX_EPOCH}")
        met = self._newest.get(caller.run_id)
        if caller.epoch == met:
            return
        newest = max(await self._ask(caller, met or 0), self._newest.get(caller.run_id, 0))
        if caller.epoch > newest or (met is None and not caller.epoch):
            raise errors.InputError(
                f"run {caller.run_id}: epoch {caller.epoch} was never drawn;"
                f" the newest of this run is {newest}"
            )
        self._newest[caller.run_id] = newest
        if caller.epoch < newest:
            raise errors.StaleEpochError(
                f"run {caller.run_id}: epoch {caller.epoch} was replaced by {newest};"
                " another controller has taken over, stop this one"
            )

    async def _ask(self, caller: Caller, met: int) -> int:
        """The newest epoch of the caller's run, as the store says or the caller itself."""
        try:
            async with asyncio.timeout(self._timeout):
                issued = await self._issued(caller.run_id)
        except TimeoutError:
            raise errors.UnavailableError(
                f"the run's store has not answered for {self._timeout:g} s; see that it works"
            ) from None
        if issued is None:
            return caller.epoch
        if issued < met:
            raise LostWritesError(
                f"run {caller.run_id}: this service has met epoch {met}, but the newest that the"
                f" store knows is {issued}: it lost writes, or is an older copy; end the run's"
                " processes and see to the store before the run goes on"
            )
        return issued
