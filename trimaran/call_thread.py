"""Calls that may hang, each under a deadline: a collective of a frozen peer, a write to a hung disk.

A thread inside such a call cannot be ended. So the calls are made on a thread of
their own, their caller waits with a deadline, and a call that never returns holds
neither its caller nor the end of the process.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from trimaran.errors import DeadlineError

Result = TypeVar("Result")


class CallThread:
    """A daemon: a call that never returns leaves its thread behind, and does not hold the process.

    Example: CallThread("disk").call(lambda: path.read_bytes(), timeout=60.0)
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._waiting: set[Future[Any]] = set()
        self._under_way: Future[Any] | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Somebody waits for a call."""
        return bool(self._waiting)

    @property
    def hangs(self) -> bool:
        """In a call that its caller has given up."""
        future = self._under_way  # which ends meanwhile
        return future is not None and future.cancelled()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, function: Callable[[], Result], timeout: float) -> Result:
        """Raises DeadlineError after `timeout` seconds. A call that has begun by then goes on, and
        nobody hears of its end; one that has not is not made any more."""
        future: Future[Result] = Future()
        self._waiting.add(future)
        self._jobs.put((function, future))
        if self._stopped:
            future.cancel()  # it stands behind the last call
        try:
            return future.result(timeout)
        except CancelledError:
            raise DeadlineError(f"{self._name}: given up by its caller") from None
        except TimeoutError:
            if not future.cancel():
                return future.result()  # the function's own error, or an end in the last moment
            raise DeadlineError(f"{self._name}: no end after {timeout:.3g} s") from None
        finally:
            self._waiting.discard(future)

    async def wait(self, function: Callable[[], Result], timeout: float) -> Result:
        """As `call`, for a caller in an event loop. When the caller is cancelled, a call that has
        begun goes on, and one that has not is made nonetheless: those behind it may build on it."""
        future: Future[Result] = Future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        self._jobs.put((function, future))
        if self._stopped:
            future.cancel()  # it stands behind the last call
        ending = asyncio.wrap_future(future)
        ending.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({ending}, timeout=timeout)
        if ending.cancelled():
            raise DeadlineError(f"{self._name}: given up by its caller")
        if not future.done() and future.cancel():
            raise DeadlineError(f"{self._name}: no end after {timeout:.3g} s")
        return future.result()

    def submit(self, function: Callable[[], Result]) -> Future[Result]:
        """For a caller that does something else meanwhile. A call that has not begun is not made any
        more once its future is cancelled; one that has goes on."""
        future: Future[Result] = Future()
        self._jobs.put((function, future))
        if self._stopped:
            future.cancel()  # it stands behind the last call
        return future

    def give_up(self) -> None:
        """From another thread: calls under way raise DeadlineError at once."""
        for future in tuple(self._waiting):
            future.cancel()

    def stop(self, last: Callable[[], None], timeout: float) -> bool:
        """Run `last` as the last call. False when the thread is still busy after `timeout` seconds."""
        self._stopped = True
        self._jobs.put((last, Future()))
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            if not future.cancelled():
                self._under_way = future
                self._make(function, future)
                self._under_way = None
            del job, function, future  # or the last call's buffers live until the next one

    def _make(self, function: Callable[[], Any], future: Future[Any]) -> None:
        try:
            result = function()
        except Exception as error:
            _settle(future.set_exception, error)
        else:
            _settle(future.set_result, result)


def _settle(settle: Callable[[Any], None], value: Any) -> None:
    with suppress(InvalidStateError):  # given up: nobody waits for it any more
        settle(value)
