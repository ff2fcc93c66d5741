"""What the run works towards, and who hears of it."""

from __future__ import annotations

import pytest

from services.controller.goals import Goals
from trimaran.errors import OutOfOrderError
from trimaran.run.runs import Goal


def heard(goals: Goals) -> tuple[bool, bool]:
    return goals.ending.is_set(), goals.cancelled.is_set()


def test_a_pause_ends_the_run_and_a_cancel_also_what_it_waits_for() -> None:
    goals = Goals(Goal.RUN)
    assert heard(goals) == (False, False)
    goals.set(Goal.PAUSE)
    assert heard(goals) == (True, False)
    goals.set(Goal.CANCEL)
    assert heard(goals) == (True, True)
    with pytest.raises(OutOfOrderError, match="already works towards cancel"):
        goals.set(Goal.PAUSE)
