"""What can be asked of a run, by its state."""

from __future__ import annotations

from enum import StrEnum

from trimaran.run.runs import ENDED, RunState


class RunAction(StrEnum):
    """A button of a run's head."""

    PAUSE = "pause"
    RESUME = "resume"
    SCALE = "scale"
    CANCEL = "cancel"
    DELETE = "delete"

    @property
    def method(self) -> str:
        """Of RunService."""
        return f"{self.capitalize()}Run"


_ON_ITS_WAY = frozenset((RunState.QUEUED, RunState.STARTING, RunState.RUNNING))
_STATES = {
    RunAction.PAUSE: _ON_ITS_WAY,
    RunAction.RESUME: frozenset((RunState.PAUSED, RunState.CANCELLED, RunState.FAILED)),
    RunAction.SCALE: _ON_ITS_WAY | {RunState.PAUSED},
    RunAction.CANCEL: _ON_ITS_WAY | {RunState.PAUSING, RunState.PAUSED},
    RunAction.DELETE: ENDED,
}


def actions(state: RunState) -> list[RunAction]:
    """Those that make sense in a state; the manager decides."""
    return [action for action in RunAction if state in _STATES[action]]
