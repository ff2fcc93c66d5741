"""When a run may end, by the pace of its last steps."""

from __future__ import annotations

from collections import deque

NUM_STEPS = 10
"""Last steps of which the mean is taken."""


class StepClock:
    """Estimates a run's end.

    Example:
        clock.step_done(step=7, at=time.time())
        clock.ends_at(num_steps=20)
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=NUM_STEPS)

    def step_done(self, step: int, at: float) -> None:
        """`at`: unix seconds."""
        self._seen.append((step, at))

    def ends_at(self, num_steps: int) -> float:
        """Unix seconds; 0 until two steps are done."""
        if len(self._seen) < 2:
            return 0.0
        (first_step, first), (last_step, last) = self._seen[0], self._seen[-1]
        return last + (num_steps - last_step) * (last - first) / (last_step - first_step)
