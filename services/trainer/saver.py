"""Work on a disk that may hang: in a thread of its own, with a deadline."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from trimaran.errors import DeadlineError, UnavailableError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Saver:
    """Callers run one piece of work at a time. One that hangs does not keep the process from ending.

    Unlike `trimaran.call_thread` it takes no thread while its caller waits, and its log tells how
    work ended that had been given up.

    Example: await Saver(600.0).run("checkpoint of step 10", lambda: save(folder))
    """

    def __init__(self, timeout: float) -> None:
        """Seconds for each piece of work."""
        self._timeout = timeout
        self._hanging = ""
        """What was given up and has not returned yet."""

    def check(self, what: str) -> None:
        """Raises UnavailableError while earlier work that took too long has not returned."""
        if self._hanging:
            raise UnavailableError(f"{what}: {self._hanging} still hangs; is the disk all right?")

    async def run(self, what: str, work: Callable[[], Result]) -> Result:
        """The result of `work`. `what` names it in messages.

        Raises DeadlineError when it takes too long, and at once as `check`. Work that is given up goes on
        by itself.
        """
        self.check(what)
        future: Future[Result] = Future()

        def carry_out() -> None:
            future.set_running_or_notify_cancel()
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=carry_out, name="saver", daemon=True).start()
        waiting = asyncio.wrap_future(future)
        done, _ = await asyncio.wait([waiting], timeout=self._timeout)
        if done:
            return waiting.result()
        self._hanging = what
        waiting.add_done_callback(self._returned)
        raise DeadlineError(f"{what}: took over {self._timeout:g} s (trainer.save_timeout)")

    def _returned(self, work: asyncio.Future[Result]) -> None:
        outcome = work.exception() or "it came to its end"
        logger.warning("%s, which had been given up: %s", self._hanging, outcome)
        self._hanging = ""
