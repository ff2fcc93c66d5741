"""Where the trainer's ranks learn how to reach rank 0: a record in the run's store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from trimaran.store import Store

Result = TypeVar("Result")
ASK_SECONDS = 60.0
"""More than a store takes to say that it cannot."""


class Meeting:
    """For the thread that builds the policy; the store is used in the event loop that made this.

    Example: Meeting(store, "addition-20261120-120000").find()
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._key = store, f"trainer_ranks/{run_id}"
        self._loop = asyncio.get_running_loop()

    def announce(self, place: dict[str, Any]) -> None:
        """As rank 0, instead of what an earlier one announced. Raises UnavailableError."""
        self._wait(self._store.put(self._key, place))

    def find(self) -> dict[str, Any] | None:
        """What was announced last; it may be of ranks that have ended. Raises UnavailableError."""
        record = self._wait(self._store.get(self._key))
        return record and record.value

    def _wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(ASK_SECONDS)
