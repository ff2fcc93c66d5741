"""A broadcast of gloo, whose end wakes who waits for it.

To ask again and again whether it has ended takes the core from gloo's own thread. Where each end has one core, a
version takes a fifth longer then.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from typing import Any

EXIT_SECONDS = 15.0
"""What gloo may take to end its broadcasts while the process ends; launchers wait as long."""
EXIT_POLL_SECONDS = 0.01


class GlooWork:
    def __init__(self, work: Any) -> None:
        """`work`: as torch's group has begun it. Raises RuntimeError while the process ends."""
        self._work = work
        self._ended = threading.Event()
        _UNDER_WAY.add(self)
        work.get_future().add_done_callback(self._note_end)

    def is_completed(self) -> bool:
        """Gloo touches its memory no more; also after an error."""
        return self._ended.is_set()

    def ends_within(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def wait(self) -> None:
        """Once it is completed. Raises RuntimeError when it has failed."""
        self._work.wait()

    @property
    def is_left_by_gloo(self) -> bool:
        """Its thread has come back from `_note_end`, too: torch notes the end of a work after its future's."""
        return self._work.is_completed()

    def _note_end(self, _: Any) -> None:
        """On gloo's thread. torch holds this method, and so the work, until it has been called."""
        self._ended.set()


class _UnderWay:
    """The works of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: weakref.WeakSet[GlooWork] = weakref.WeakSet()
        self._is_leaving = False

    def add(self, work: GlooWork) -> None:
        with self._lock:
            if self._is_leaving:
                raise RuntimeError("this process is ending")
            self._works.add(work)

    def leave(self) -> None:
        """A call from gloo's thread into an interpreter that is going down would end the process with an abort."""
        with self._lock:
            self._is_leaving = True
            works = list(self._works)
        deadline = time.monotonic() + EXIT_SECONDS
        while time.monotonic() < deadline and not all(work.is_left_by_gloo for work in works):
            time.sleep(EXIT_POLL_SECONDS)


_UNDER_WAY = _UnderWay()
atexit.register(_UNDER_WAY.leave)
