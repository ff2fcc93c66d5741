"""Ending what may block: a thread for calls without a deadline, and a stop for several threads.

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
        self._waiting: set[Future[Any]] = set()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Somebody waits for a call."""
        return bool(self._waiting)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, function: Callable[[], Result], timeout: float) -> Result:
        """Raises DeadlineError after `timeout` seconds; the thread is then still busy."""
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
            if future.done():
                raise
            raise DeadlineError(f"{self._name}: no end after {timeout:.3g} s") from None
        finally:
            self._waiting.discard(future)

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


class Stop:
    """Ends one piece of work at once, in whatever threads it is under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = threading.Event()
        self._reason = ""
        self._interrupts: list[Callable[[], None]] = []

    def set(self, reason: str) -> None:
        """The first reason counts."""
        with self._lock:
            if self._set.is_set():
                return
            self._reason = reason
            self._set.set()
            for interrupt in self._interrupts:
                interrupt()

    def check(self) -> None:
        """Raises TransferError with the reason once the stop is set."""
        if self._set.is_set():
            raise TransferError(self._reason)

    def pause(self, seconds: float) -> None:
        """Sleep; raises as `check` does as soon as the stop is set."""
        self._set.wait(seconds)
        self.check()

    @contextmanager
    def interrupting(self, interrupt: Callable[[], None]) -> Iterator[None]:
        """Inside, `set` calls `interrupt` (quick, from another thread), which ends a blocking call."""
        with self._lock:
            self.check()
            self._interrupts.append(interrupt)
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)


@contextmanager
def hold(lock: threading.Lock, timeout: float) -> Iterator[None]:
    """`with lock`, under a deadline. Raises TransferError after `timeout` seconds."""
    if not lock.acquire(timeout=timeout):
        raise TransferError(f"another transfer is still under way after {timeout:g} s")
    try:
        yield
    finally:
        lock.release()
