"""Where the trainer's ranks learn how to reach rank 0: a record in the run's store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from trimaran.errors import LeftBehindError, UnavailableError
from trimaran.store import Store

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
ASK_SECONDS = 60.0
"""More than a store takes to say that it cannot."""
LOOK_SECONDS = 1.0
"""Between two looks whether the ranks are those that have met."""


class Meeting:
    """For the thread that builds the policy; the store is used in the event loop that made this.

    Example: Meeting(store, "addition-20261120-120000").find()
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._key = store, f"trainer_ranks/{run_id}"
        self._again = f"{self._key}/again"
        self._loop = asyncio.get_running_loop()
        self._met: dict[str, Any] | None = None

    def announce(self, place: dict[str, Any]) -> None:
        """As rank 0, instead of what an earlier one announced. Raises UnavailableError."""
        self._wait(self._store.put(self._key, place))

    def find(self) -> dict[str, Any] | None:
        """What was announced last; it may be of ranks that have ended. Raises UnavailableError."""
        record = self._wait(self._store.get(self._key))
        return record and record.value

    def meets(self, place: dict[str, Any]) -> None:
        """This rank takes part in what the rank 0 there has begun, or is that rank 0."""
        self._met = place

    def ask_again(self, place: dict[str, Any]) -> None:
        """The rank 0 there has met a rank that has died since. Raises UnavailableError."""
        self._wait(self._store.put(self._again, place))

    async def until_broken(self, rank: int, look: float = LOOK_SECONDS) -> None:
        """Watches while `rank` lives. Raises LeftBehindError once those that have met are not those
        that are there: above rank 0, when another rank 0 has announced itself; on rank 0, when it was
        asked to meet them again. The launcher may not know: it may be younger than the rank that died.
        """
        while True:
            await asyncio.sleep(look)
            try:
                record = await self._store.get(self._key if rank else self._again)
            except UnavailableError as error:
                logger.warning("whether the ranks are still the same cannot be seen: %s", error)
                continue
            if self._met is None or record is None:
                continue
            if (record.value == self._met) is (rank == 0):
                other = "the rank 0" if rank else "a rank"
                raise LeftBehindError(
                    f"trainer rank {rank}: {other} that it had met was replaced; it ends, so that it is"
                    " started again and meets the new one"
                )

    def _wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(ASK_SECONDS)
