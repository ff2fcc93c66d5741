"""Ending work that is under way in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trimaran.errors import TransferError


class Stop:
    """Ends one piece of work at once, in whatever threads it is under way.

    Example:

        stop = Stop()
        with stop.interrupting(lambda: sock.shutdown(socket.SHUT_RDWR)):  # in a thread
            data = sock.recv(1024)
        stop.set("the caller gave up")  # in another one: recv returns
    """

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
