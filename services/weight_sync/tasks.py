"""Background tasks: ended by who started them, and their failures never lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

logger = logging.getLogger(__name__)


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Returns once all have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Who is cancelled meanwhile is so once the work is done."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def log_failure(task: asyncio.Task[Any]) -> None:
    """A done callback, for tasks that are not awaited."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed in a way that was not foreseen", task.get_name(), exc_info=error)
