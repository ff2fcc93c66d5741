"""When a service that died is started again, and when it is not worth it any more."""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
MAX_IN_A_ROW = 5
STEADY_SECONDS = 300.0
"""Who lived that long has started well: its death is the first in a row."""


class Restarts:
    """Decides about the restarts of one service.

    Example: Restarts().next_pause(lived_seconds=2.0) == 1.0, then 2.0, 4.0, 8.0, 16.0 and None.
    """

    def __init__(
        self,
        first_pause: float = FIRST_PAUSE_SECONDS,
        longest_pause: float = LONGEST_PAUSE_SECONDS,
        max_in_a_row: int = MAX_IN_A_ROW,
    ) -> None:
        self.num_in_a_row = 0
        self._first_pause, self._longest_pause = first_pause, longest_pause
        self._max_in_a_row = max_in_a_row

    def next_pause(self, lived_seconds: float) -> float | None:
        """Seconds to wait after this death, twice as many each time; None to give up."""
        if lived_seconds >= STEADY_SECONDS:
            self.num_in_a_row = 0
        self.num_in_a_row += 1
        if self.num_in_a_row > self._max_in_a_row:
            return None
        return min(self._first_pause * 2 ** (self.num_in_a_row - 1), self._longest_pause)

    def forgive(self) -> None:
        """It has done its work since: its next death is the first in a row."""
        self.num_in_a_row = 0
