"""Whether what a run's watchers were shown can be true, judged from its events and the faults made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trimaran.run.runs import EventKind, RunEvent, RunState

DEATH = "the launcher died"
"""How the manager's word on it begins."""
RESUMED = "pause and resume"
SHARED = ("kill manager", "kill redis")
"""Of every run beside; so are those that freeze the two."""
DEADLY = (*SHARED, "kill launcher")
FREEZING = ("freeze", "frozen")
"""Whatever is frozen in a write keeps a store locked, and its launcher loses the lease."""
EXPLAINS_SECONDS = 90.0
"""From the beginning of a fault to the last word on what it did. A launcher that is frozen while it
starts is found after 60 s."""


@dataclass(frozen=True, slots=True)
class Harm:
    """A fault that was chosen, whether its moment came or not."""

    kind: str
    """As `moves.Case` has it."""
    time: float
    """Unix seconds when it began."""

    @property
    def is_shared(self) -> bool:
        return self.kind in SHARED or self.kind.endswith((" manager", " redis"))

    @property
    def may_end_a_launcher(self) -> bool:
        return self.kind in DEADLY or self.kind.startswith(FREEZING)


def find_untrue(events: Iterable[RunEvent], harms: Sequence[Harm], starts: int) -> list[str]:
    """`events`: all of the run. `harms`: of the run, and shared ones. `starts`: of its launchers, as
    the manager counts them.

    A run finishes once, unless it is resumed. Each death of a launcher has a fault of its own
    that may be its cause, and each start a submission, a resumption or a death.
    """
    wrong: list[str] = []
    deaths: dict[int, float] = {}
    has_finished = False
    for event in events:
        if event.kind is EventKind.STATE and event.run.state is RunState.QUEUED:
            has_finished = False
        if event.kind is EventKind.FINISHED:
            if has_finished:
                wrong.append(f"event {event.sequence}: it finishes once more, {event.run.state}")
            has_finished = True
        if event.kind is EventKind.PROCESS and event.text.startswith(DEATH):
            # A manager that was killed before it had recorded the death reports it again.
            deaths.setdefault(event.run.starts, event.time)
    for start, time in _unexplained(deaths, harms):
        wrong.append(
            f"launcher {start} is said to have died at {time:.1f}, and no fault explains it"
        )
    resumed = sum(harm.kind == RESUMED for harm in harms)
    if starts > 1 + resumed + len(deaths):
        wrong.append(
            f"{starts} starts after {len(deaths)} deaths and at most {resumed} resumptions"
        )
    return wrong


def _unexplained(deaths: dict[int, float], harms: Sequence[Harm]) -> Iterator[tuple[int, float]]:
    """The oldest fault that may explain a death is used up by it: so as many as can be are explained."""
    left = sorted(harm.time for harm in harms if harm.may_end_a_launcher)
    for start, time in sorted(deaths.items(), key=lambda death: death[1]):
        while left and left[0] < time - EXPLAINS_SECONDS:
            left.pop(0)
        if left and left[0] <= time:
            left.pop(0)
        else:
            yield start, time
