"""How long the control side waits where no setting of the run says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds.

    Example: Pauses(settle=0.05) for a test whose replicas answer at once.
    """

    first_retry: float = 1.0
    """Before a replica that failed is tried again; doubles with each failure in a row."""
    longest_retry: float = 30.0
    """The bound of that doubling: a replica that was frozen for long is back this soon."""
    settle: float = 2.0
    """After a transfer's first failure, how long the others in its group may take to end theirs."""

    def before_retry(self, failures: int) -> float:
        """After so many in a row."""
        doubled = self.first_retry * 2.0 ** min(failures - 1, 30)
        return min(doubled, self.longest_retry) if failures else 0.0


DEFAULT_PAUSES = Pauses()
