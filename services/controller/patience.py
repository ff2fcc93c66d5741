"""A service that restarts is waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from trimaran.errors import UnavailableError

Answer = TypeVar("Answer")

RETRY_SECONDS = 1.0


async def patiently(call: Callable[[], Awaitable[Answer]], patience: float, service: str) -> Answer:
    """`call()`, again while the service is away. Raises UnavailableError after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return await call()
        except UnavailableError as error:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{service} could not help for {patience:g} s: {error}; see its log"
                ) from None
            await asyncio.sleep(RETRY_SECONDS)
