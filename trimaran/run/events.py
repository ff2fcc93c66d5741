"""A run's events in its store: appended by several processes, read by everybody who watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from trimaran.errors import OutOfOrderError, StaleEpochError, UnavailableError
from trimaran.run.runs import (
    EventKind,
    Run,
    RunEvent,
    RunState,
    event_from_tree,
    event_to_tree,
    events_stream,
)
from trimaran.store import Store, TrimmedError, entries

POLL_SECONDS = 0.2
RETRY_SECONDS = 1.0


def make_event(
    kind: EventKind,
    run: Run,
    text: str = "",
    values: Mapping[str, float] | None = None,
    root: str = "",
) -> RunEvent:
    """Without its sequence number, which is the stream's."""
    return RunEvent(0, kind, run, values or {}, text, time.time(), root)


async def append_event(store: Store, event: RunEvent) -> None:
    """For who has no epoch: the launcher and the manager."""
    await store.extend(events_stream(event.run.run_id), [event_to_tree(event)])


async def watch_events(
    store: Store, run_id: str, after: int = 0, poll: float = POLL_SECONDS
) -> AsyncGenerator[RunEvent, None]:
    """Every event behind `after`, for as long as it is read: a run that has ended may be resumed.

    A store that is away is asked again; the caller decides how long to wait.
    """
    while True:
        try:
            async for sequence, tree in entries(store, events_stream(run_id), after):
                yield event_from_tree(sequence, tree)
                after = sequence
        except TrimmedError as error:
            after = error.through
        except UnavailableError:
            await asyncio.sleep(RETRY_SECONDS)
        await asyncio.sleep(poll)


def is_last(event: RunEvent) -> bool:
    """Whether the run's processes end behind it."""
    return event.kind is EventKind.FINISHED or event.run.state is RunState.PAUSED


class FencedStream:
    """Appends to a stream, to which others append as well, while an epoch is the newest.

    The holder of a newer epoch appends before it does anything else. So the order is: learn where the
    stream ends, see that our epoch is the newest, append behind that end. If a successor came after
    the look at the epoch, the stream ends elsewhere by now, and the append is refused.

    Example:
        stream = FencedStream(store, events_stream(run_id), run_id, epoch=3)
        await stream.extend([event_to_tree(event)])
    """

    def __init__(self, store: Store, stream: str, name: str, epoch: int) -> None:
        """`epoch`: of `name`."""
        self._store, self._stream, self._name, self._epoch = store, stream, name, epoch
        self._last: int | None = None

    @property
    def last(self) -> int:
        """The sequence of what was appended last; 0 before."""
        return self._last or 0

    async def extend(self, values: Sequence[Any]) -> None:
        """Raises StaleEpochError, and what the store raises. After UnavailableError give the same
        values again: those that were written are not written twice."""
        while True:
            if self._last is None:
                self._last = await self._store.last(self._stream)
            newest = await self._store.newest_epoch(self._name)
            if newest != self._epoch:
                raise StaleEpochError(
                    f"run {self._name}: epoch {self._epoch} was replaced by {newest}"
                )
            try:
                self._last = await self._store.extend(self._stream, values, after=self._last)
                return
            except OutOfOrderError:
                standing = await self._store.read(self._stream, self._last, len(values))
                if [value for _, value in standing] == list(values):
                    self._last += len(values)
                    return
                self._last = None
