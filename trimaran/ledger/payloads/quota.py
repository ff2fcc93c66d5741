"""How many bytes of payloads a run may keep, `run.payload_quota_gib`, and what waits for room in it.

    a group is scored ──▶ is there room? ──▶ its payload is kept, and written with its record
                            │    ▲
                            no   │ a checkpoint was saved, and what no resume needs any more is gone
                            ▼    │
                           it waits

Only the group waits. If records waited behind it, the step under way could not be committed, and
without that there is no checkpoint, which makes room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from trimaran.ledger.disk import NoRoomError
from trimaran.ledger.write_pause import WritePause

GIB = 1 << 30
NUM_RECENT = 256
"""Groups, whose mean size says how many more there is room for."""

Act = Callable[[], Awaitable[None]]


class Quota:
    """Counts what is kept.

    Example:
        quota = Quota(config.run.payload_quota_gib, pause)
        await quota.until_room(4096, count, ask)  # count: drops, and calls quota.counted
        quota.add(4096)
    """

    def __init__(self, gib: float | None, pause: WritePause) -> None:
        """`gib`: None where there is no bound."""
        self._gib, self._pause = gib, pause
        self._num_bytes: int | None = None
        """Written or about to be; None until they were counted."""
        self._sizes = deque[int](maxlen=NUM_RECENT)
        self._freed = asyncio.Event()
        """Set by the next count that finds less."""
        self._num_waiting = 0
        self.short = asyncio.Event()
        """Set while a group waits."""

    def add(self, num_bytes: int) -> None:
        """One group."""
        if self._num_bytes is not None:
            self._num_bytes += num_bytes
        self._sizes.append(num_bytes)

    def counted(self, num_bytes: int) -> None:
        """What there is, after a drop."""
        is_less = self._num_bytes is None or num_bytes < self._num_bytes
        self._num_bytes = num_bytes
        if is_less:  # else those that wait would count for each other, without an end
            freed, self._freed = self._freed, asyncio.Event()
            freed.set()

    def is_filled(self, share: float, num_groups: float = 0) -> bool:
        """Whether more than `share` of it is used, or would be by so many more groups, as large as the last
        ones were."""
        if self._gib is None or self._num_bytes is None:
            return False
        mean = sum(self._sizes) / max(1, len(self._sizes))
        return self._num_bytes + num_groups * mean > share * self._gib * GIB

    async def until_room(self, num_bytes: int, count: Act, ask: Act) -> None:
        """Waits for room for one group. `count` drops what no resume needs and calls `counted`; `ask` asks for a checkpoint, each
        time that there is no room.

        Raises HeldError after `run.hold_timeout`.
        """

        if self._has_room(num_bytes):
            return
        waits = False

        async def look() -> None:
            nonlocal waits
            if not self._has_room(num_bytes):
                await count()
            if self._has_room(num_bytes):
                return
            if not waits:
                waits = True
                self._wait(1)
            await ask()
            raise NoRoomError(self._describe())

        try:
            await self._pause.until_written(look, again=lambda: self._freed)
        finally:
            self._wait(-waits)

    def _wait(self, num_groups: int) -> None:
        self._num_waiting += num_groups
        if self._num_waiting:
            self.short.set()
        else:
            self.short.clear()

    def _has_room(self, num_bytes: int) -> bool:
        if self._gib is None:
            return True
        return self._num_bytes is not None and self._num_bytes + num_bytes <= self._gib * GIB

    def _describe(self) -> str:
        return (
            f"the run's payloads take up {(self._num_bytes or 0) / GIB:.3g} GiB, and"
            f" run.payload_quota_gib is {self._gib:g}; a checkpoint after the step under way may make"
            " room. Else end the run, raise the quota in its config.yaml and resume it, or remove"
            " payloads that are not needed"
        )
