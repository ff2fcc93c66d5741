"""When at least one use of something was under way: the union of overlapping intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType


class BusyTime:
    """Enter it for each use. `report(start, end)` gets each interval with a use, in unix seconds. A use
    of it is also one of `whole`, where that is given.

    Example:
        scoring = BusyTime()
        with scoring, scoring:  # two uses at once count once
            time.sleep(0.1)
        scoring.cut()  # about 0.1
    """

    def __init__(
        self,
        report: Callable[[float, float], None] | None = None,
        whole: BusyTime | None = None,
    ) -> None:
        self._report, self._whole = report, whole
        self._num_uses = 0
        self._since = 0.0
        self._seconds = 0.0

    def __enter__(self) -> None:
        if self._whole:
            self._whole.__enter__()
        if self._num_uses == 0:
            self._since = time.time()
        self._num_uses += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._num_uses -= 1
        if self._num_uses == 0:
            self._close()
        if self._whole:
            self._whole.__exit__(kind, error, traceback)

    def cut(self) -> float:
        """Busy seconds since the last cut; an interval under way is closed and begun again."""
        if self._num_uses:
            self._close()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """No second within counts."""
        counted = self.cut()
        yield
        self.cut()
        self._seconds = counted

    def _close(self) -> None:
        now = time.time()
        self._seconds += now - self._since
        if self._report:
            self._report(self._since, now)
        self._since = now
