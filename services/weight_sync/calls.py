"""One thread for calls into a library that may block without a deadline of its own.

A TCPStore client waits for ever for a server that is frozen, and an
accelerator's collectives want every call from a thread that has the device
current. So each end of a group makes all its calls on one thread, and the
caller waits with a deadline.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from trimaran.errors import DeadlineError, TransferError

Result = TypeVar("Result")


class CallThread:
    """A daemon: a call that never returns leaves its thread behind, and does not hold the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._waiting: Future[Any] | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Result], timeout: float) -> Result:
        """Raises DeadlineError after `timeout` seconds; the thread is then still busy."""
        future: Future[Result] = Future()
        self._waiting = future
        self._jobs.put((function, future))
        try:
            return future.result(timeout)
        except CancelledError:
            raise DeadlineError(f"{self._name}: given up by its caller") from None
        except TimeoutError:
            if future.done():
                raise
            raise DeadlineError(f"{self._name}: no end after {timeout:g} s") from None

    def give_up(self) -> None:
        """From another thread: the call under way raises DeadlineError at once."""
        if self._waiting is not None:
            self._waiting.cancel()

    def stop(self, last: Callable[[], None], timeout: float) -> bool:
        """Run `last` as the last call. False when the thread is still busy after `timeout` seconds."""
        self._jobs.put((last, Future()))
        self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            try:
                result = function()
            except Exception as error:
                _settle(future.set_exception, error)
            else:
                _settle(future.set_result, result)
                del result
            del job, function, future  # or the last call's buffers live until the next one


def _settle(settle: Callable[[Any], None], value: Any) -> None:
    with suppress(InvalidStateError):  # given up: nobody waits for it any more
        settle(value)


@contextmanager
def hold(lock: threading.Lock, timeout: float) -> Iterator[None]:
    """`with lock`, under a deadline. Raises TransferError after `timeout` seconds."""
    if not lock.acquire(timeout=timeout):
        raise TransferError(f"another transfer is still under way after {timeout:g} s")
    try:
        yield
    finally:
        lock.release()
