"""What the run works towards: to its last step, to a pause, or to an early end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trimaran.errors import OutOfOrderError
from trimaran.runs import Goal, RunState

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
        if goal is not Goal.RUN:
            self.ending.set()

    def set(self, goal: Goal) -> None:
        """Idempotent. Raises OutOfOrderError for a goal that would turn back."""
        if ORDER.index(goal) < ORDER.index(self.goal):
            raise OutOfOrderError(
                f"goal {goal}: the run already works towards {self.goal}; start it again once its"
                " processes have ended"
            )
        if goal is not self.goal:
            self.goal = goal
            self.ending.set()
            self.on_change()

    def state(self, otherwise: RunState) -> RunState:
        """How the run stands: it ends, or `otherwise`."""
        return ENDING.get(self.goal, otherwise)
