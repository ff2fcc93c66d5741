"""A circuit breaker: a plugin that fails again and again is left alone for a while.

Written here because purgatory 3.0.1, the library for it, raises one and the same exception object for
every refused call, which keeps all their frames in memory, and lets all callers through at once when
it tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 5
"""In a row, after which a plugin is left alone."""
REST_SECONDS = 10.0


class CircuitOpenError(Exception):
    """Says what failed, how often, and for how long the plugin is not asked."""


class Breaker:
    """Call `check` before, then `succeeded` or `failed`; neither after a cancelled call.

    Example:
        breaker = Breaker()
        breaker.check()             # raises CircuitOpenError while the plugin is left alone
        try:
            answer = ask_the_plugin()
        except ConnectionError as error:
            breaker.failed(str(error))
        else:
            breaker.succeeded()
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._closed_until = 0.0
        self._last = ""

    @property
    def is_open(self) -> bool:
        return self._failures >= FAILURES

    def check(self) -> None:
        """Raises CircuitOpenError; after a rest, one caller passes and the others rest on."""
        if not self.is_open:
            return
        now = self._clock()
        if now < self._closed_until:
            raise CircuitOpenError(
                f"failed {self._failures} times in a row and is left alone for"
                f" {self._closed_until - now:.1f} s; last: {self._last}"
            )
        self._closed_until = now + REST_SECONDS

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, reason: str) -> None:
        self._failures += 1
        self._last = reason
        self._closed_until = self._clock() + REST_SECONDS
