"""Calls that may hang, each under a deadline: a collective of a frozen peer, a write to a hung disk.

A thread inside such a call cannot be ended. So the calls are made on threads of
their own, their caller waits with a deadline, and a call that never returns holds
neither its caller nor the end of the process.

`CallThread` makes any such calls, `Disk` those of which the caller hears what is wrong with the disk.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from trimaran.errors import DeadlineError, UnavailableError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class CallThread:
    """A daemon: a call that never returns leaves its thread behind, and does not hold the process.

    Example: CallThread("disk").call(lambda: path.read_bytes(), timeout=60.0)
    """

    def __init__(self, name: str, num_threads: int = 1) -> None:
        """`num_threads`: calls that are made at a time. With one, they are made in order."""
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._waiting: set[Future[Any]] = set()
        self._under_way: set[Future[Any]] = set()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._work, name=name, daemon=True) for _ in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        """Whether a caller waits."""
        return bool(self._waiting)

    @property
    def hangs(self) -> bool:
        """In a call that its caller has given up."""
        return any(future.cancelled() for future in tuple(self._under_way))

    @property
    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def call(self, function: Callable[[], Result], timeout: float) -> Result:
        """Raises DeadlineError after `timeout` seconds. A call that has begun by then goes on, and
        its end is logged; one that has not is not made any more."""
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
        """Run `last` as the last call. False when a thread is still busy after `timeout` seconds."""
        self._stopped = True
        self._jobs.put((last, Future()))
        deadline = time.monotonic() + timeout
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not self.alive

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            if not future.cancelled():
                self._under_way.add(future)
                self._make(function, future)
                self._under_way.discard(future)
            del job, function, future  # or the last call's buffers live until the next one

    def _make(self, function: Callable[[], Any], future: Future[Any]) -> None:
        outcome: object = "it came to its end"
        with suppress(InvalidStateError):  # its caller has given it up
            try:
                result = function()
            except Exception as error:
                outcome = error
                future.set_exception(error)
            else:
                future.set_result(result)
            return
        logger.warning("%s: a call that had been given up has returned: %s", self._name, outcome)


class Disk:
    """Work on a disk. While work that took too long has not returned, further work is refused at once.

    Example: await Disk(run_folder, 60.0).do(lambda: path.read_bytes())
    """

    def __init__(
        self, place: object, timeout: float, setting: str = "", num_threads: int = 1
    ) -> None:
        """`place`: for messages. `timeout`: seconds of one piece of work, with those that stand before it;
        `setting` is the key that says so. With one thread, work is done in order, cancelled or not."""
        self.place, self.timeout = place, timeout
        self._setting = f" ({setting})" if setting else ""
        self._thread = CallThread(f"disk of {place}", num_threads)

    @property
    def hangs(self) -> bool:
        return self._thread.hangs

    def check(self, what: object = None) -> None:
        """Raises UnavailableError while earlier work that took too long has not returned."""
        if self.hangs:
            raise self._no_answer(what)

    async def do(self, work: Callable[[], Result], what: object = None) -> Result:
        """What `work` returns or raises. `what` names it in messages, in place of the disk's place.

        Raises UnavailableError where the disk hangs. Work that is given up goes on by itself."""
        self.check(what)
        try:
            return await self._thread.wait(work, self.timeout)
        except DeadlineError:
            raise self._no_answer(what) from None

    def close(self, timeout: float, last: Callable[[], None] = lambda: None) -> None:
        """Blocks until what was asked for is done, and `last`; a disk that hangs is left alone after
        `timeout` seconds."""
        self._thread.stop(last, timeout)

    def _no_answer(self, what: object) -> UnavailableError:
        return UnavailableError(
            f"{what or self.place}: its disk has not answered for {self.timeout:g} s{self._setting};"
            " see that it works again"
        )
