"""When a service that died is started again, and when it is not worth it any more."""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
MAX_IN_A_ROW = 5
STEADY_SECONDS = 300.0
"""Who lived that long has started well: its death is the first in a row."""


class Restarts:
    """Of one service."""

    def __init__(self) -> None:
        self.num_in_a_row = 0

    def next_pause(self, lived_seconds: float) -> float | None:
        """Seconds to wait after this death, twice as many each time; None to give up."""
        if lived_seconds >= STEADY_SECONDS:
            self.num_in_a_row = 0
        self.num_in_a_row += 1
        if self.num_in_a_row > MAX_IN_A_ROW:
            return None
        return min(FIRST_PAUSE_SECONDS * 2 ** (self.num_in_a_row - 1), LONGEST_PAUSE_SECONDS)
