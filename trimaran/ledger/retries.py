"""A service that restarts is waited for, and what failed is tried again after growing waits."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from trimaran.errors import UnavailableError
from trimaran.store import StoreFullError

Answer = TypeVar("Answer")

RETRY_SECONDS = 1.0
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0


async def patiently(
    call: Callable[[], Awaitable[Answer]],
    patience: float,
    service: str,
    retry: float = RETRY_SECONDS,
    patience_when_full: float = 0.0,
) -> Answer:
    """`call()`, each `retry` seconds while the service is away.

    Raises UnavailableError, naming the service, after `patience` seconds, which is `outage_timeout`.
    `patience_when_full`: with a store that has no room, which may take longer to fix.

    Example: routing = await patiently(weight_sync.get_routing, 60.0, "weight-sync")
    """
    began = time.monotonic()
    while True:
        try:
            return await call()
        except UnavailableError as error:
            limit, setting = patience, "outage_timeout"
            if isinstance(error, StoreFullError) and patience_when_full > patience:
                limit, setting = patience_when_full, "run.hold_timeout"
            if time.monotonic() > began + limit:
                raise UnavailableError(
                    f"{service} could not help for {limit:g} s ({setting}): {error}; see its log"
                ) from None
            await asyncio.sleep(retry)


def growing_wait(num_failures: int) -> float:
    """Seconds before the next try: doubled each time, with jitter so that tries do not coincide."""
    doublings = min(num_failures - 1, 30)  # beyond, the number would only grow too large
    seconds = min(FIRST_WAIT_SECONDS * 2**doublings, LONGEST_WAIT_SECONDS)
    return seconds * random.uniform(0.5, 1.0)
