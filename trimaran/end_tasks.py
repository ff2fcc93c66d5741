"""The end of background tasks, for who has started them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_SECONDS = 10.0
"""Long enough for what a task does on its way out, which another cancellation would cut off."""


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels them until all have ended; their results and errors are dropped.

    Once is not enough for a task that goes on for ever: a library may drop the cancellation that reaches it,
    as `asyncio.wait_for` does before Python 3.12 when its work ends at the same moment.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()  # so that asyncio does not call it lost
