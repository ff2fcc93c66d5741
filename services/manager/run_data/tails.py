"""What happens in a run, read once from its store for all who watch it.

Nothing waits for a watcher, and nothing is queued for one: each asks for what comes behind the event
that it had last. Who is slower than the events that are kept in memory reads from the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from itertools import islice

from services.manager.run_data.run_stores import RunStores
from trimaran.errors import NotFoundError, UnavailableError
from trimaran.run.runs import RunEvent, event_from_tree, events_stream
from trimaran.store import TrimmedError

POLL_SECONDS = 0.2
CHECK_SECONDS = 1.0
"""Between two looks of a watcher at whether the run has ended."""
KEPT = 1000
"""Events of one run."""
PAGE = 200


class Tail:
    """The end of one run's events, while it is watched.

    Example:
        tail = tails.join(run_id, store_url)
        events, missed = await tail.read(after=0, now=True)
    """

    def __init__(self, stores: RunStores, run_id: str, url: str, kept: int = KEPT) -> None:
        self._stores, self._stream, self._url = stores, events_stream(run_id), url
        self._events: deque[RunEvent] = deque(maxlen=kept)
        self.last = 0
        """Sequence of the newest event."""
        self.num_watchers = 0
        self._grown = asyncio.Event()
        self.error: Exception | None = None
        """Why it follows no more."""
        self.task: asyncio.Task[None] | None = None

    async def follow(self, poll: float) -> None:
        """Until cancelled, or until an error that no retry fixes; readers then get the error."""
        try:
            await self._follow(poll)
        except Exception as error:
            self.error = error
            self._wake()

    async def _follow(self, poll: float) -> None:
        """A store that does not answer is asked again."""
        while True:
            try:
                async with self._stores.of(self._url) as store:
                    if not self.last:
                        end = await store.last(self._stream)
                        self.last = max(end - (self._events.maxlen or KEPT), 0)
                    while found := await store.read(self._stream, self.last, PAGE):
                        self._events.extend(event_from_tree(n, tree) for n, tree in found)
                        self.last = found[-1][0]
                        self._wake()
            except TrimmedError as error:
                self.last = error.through
            except (NotFoundError, UnavailableError):
                pass  # nothing was written yet, or the store is away: who watches waits
            await asyncio.sleep(poll)

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()

    async def wait_for_more(self, after: int, timeout: float) -> None:
        """Until there is an event behind `after`, `timeout` seconds at most."""
        grown = self._grown
        if self.last > after or self.error:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await grown.wait()

    async def read(self, after: int, now: bool) -> tuple[Sequence[RunEvent], int]:
        """The next events behind `after`, PAGE at most, and what is missed: 0, or the last sequence
        that the store does not keep any more. `now`: also those that the tail has not seen yet.
        Raises what ended `follow`."""
        if self.error:
            raise self.error
        if self._events and after >= self._events[0].sequence - 1 and not now:
            skip = after - self._events[0].sequence + 1
            return list(islice(self._events, skip, skip + PAGE)), 0
        async with self._stores.of(self._url) as store:
            missed = 0
            while True:
                try:
                    found = await store.read(self._stream, missed or after, PAGE)
                    break
                except TrimmedError as error:
                    missed = error.through
        return [event_from_tree(n, tree) for n, tree in found], missed


class Tails:
    """One for each run that is watched.

    Example: Tails(stores)
    """

    def __init__(self, stores: RunStores, poll: float = POLL_SECONDS, kept: int = KEPT) -> None:
        self._stores, self._poll, self._kept = stores, poll, kept
        self._tails: dict[str, Tail] = {}

    def join(self, run_id: str, url: str) -> Tail:
        """`leave` must follow."""
        tail = self._tails.get(run_id)
        if tail is None or tail.error:
            tail = self._tails[run_id] = Tail(self._stores, run_id, url, self._kept)
            tail.task = asyncio.create_task(tail.follow(self._poll))
        tail.num_watchers += 1
        return tail

    async def leave(self, run_id: str, tail: Tail) -> None:
        tail.num_watchers -= 1
        if not tail.num_watchers and self._tails.get(run_id) is tail:
            del self._tails[run_id]
            assert tail.task
            tail.task.cancel()
            await asyncio.wait([tail.task])

    @property
    def num_watchers(self) -> int:
        return sum(tail.num_watchers for tail in self._tails.values())


async def watch(
    tails: Tails, run_id: str, url: str, after: int, is_over: Callable[[], bool]
) -> AsyncGenerator[RunEvent | int]:
    """Every event behind `after`; an int is the last sequence of those that are missed.

    Ends once `is_over` says that nothing new is awaited, and every event has been given.
    """
    tail = tails.join(run_id, url)
    try:
        while True:
            over = is_over()
            events, missed = await tail.read(after, now=over)
            if missed:
                yield missed
                after = missed
            for event in events:
                yield event
                after = event.sequence
            if over and not events:
                return
            if not events:
                await tail.wait_for_more(after, CHECK_SECONDS)
    finally:
        await tails.leave(run_id, tail)
