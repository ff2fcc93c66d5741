"""What the run works towards: to its last step, to a pause, or to an early end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trimaran.errors import OutOfOrderError
from trimaran.run.runs import Goal, RunState

ORDER = (Goal.RUN, Goal.PAUSE, Goal.CANCEL)
ENDING = {Goal.PAUSE: RunState.PAUSING, Goal.CANCEL: RunState.CANCELLING}


class Goals:
    """Moves on only: a controller that has begun to end the run does not turn back.

    Example:
        goals = Goals(Goal.RUN)
        goals.set(Goal.PAUSE)
        goals.ending.is_set()
    """

    def __init__(self, goal: Goal, on_change: Callable[[], None] = lambda: None) -> None:
        self.goal = goal
        self.on_change = on_change
        self.ending = asyncio.Event()
        """The run ends after the step under way; while it is held, at once."""
        self.cancelled = asyncio.Event()
        """Besides: it waits for no further batch, nor for a validation."""
        self._tell()

    def set(self, goal: Goal) -> None:
        """Idempotent. Raises OutOfOrderError for a goal that would turn back."""
        if ORDER.index(goal) < ORDER.index(self.goal):
            raise OutOfOrderError(
                f"goal {goal}: the run already works towards {self.goal}; start it again once its"
                " processes have ended"
            )
        if goal is not self.goal:
            self.goal = goal
            self._tell()
            self.on_change()

    def _tell(self) -> None:
        if self.goal is not Goal.RUN:
            self.ending.set()
        if self.goal is Goal.CANCEL:
            self.cancelled.set()

    def state(self, otherwise: RunState) -> RunState:
        """How the run stands: it ends, or `otherwise`."""
        return ENDING.get(self.goal, otherwise)
