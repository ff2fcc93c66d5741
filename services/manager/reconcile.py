"""What follows from how a run stands and how it shall stand. Pure: seen in, decided out.

The loop (`services/manager/manager.py`) asks again and again, so nothing here depends on having seen
each change: a manager that was started again decides as the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from services.manager.records import Managed
from services.manager.scheduling.pools import NO_GRANT, Grant
from trimaran.run.launchers import Presence
from trimaran.run.runs import TRANSITIONS, Goal, Run, RunState


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """What is there of a run."""

    presence: Presence
    has_lease: bool
    """Its launcher has renewed its lease in time, or had no time for it since the store answers."""
    reported: Run | None = None
    """What its processes have written since it was started; None: nothing yet."""
    replicas: frozenset[int] | None = None
    """Indices of the replicas that have processes; None where it is not known."""
    last_words: str = ""
    """The end of the launcher's log, or why none could be started."""
    ending_seconds: float = 0.0
    """For how long its launcher is gone, and something that it had started is not."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. Example: Times(first_pause=1.0)"""

    look: float = 0.5
    """Between two looks at every run."""
    first_lease: float = 60.0
    """For a new launcher to take its lease: it loads Python first, on a busy machine."""
    lapse: float = 5.0
    """For a launcher to renew a lease that has ended, while the store answers: while it was away, none
    could. Longer than some renewals."""
    first_pause: float = 2.0
    """Before a launcher that died is started again; twice as long each time."""
    longest_pause: float = 120.0
    ending: float = 30.0
    """For what a launcher has left behind to end by itself; its guardian waits for 5 s."""
    steady: float = 300.0
    """A launcher that lived that long has started well."""
    max_deaths: int = 5
    """Deaths in a row after which the run fails."""


TIMES = Times()
FACTS = ("step", "reward", "held_out", "ends_at", "doing")
"""What is taken as the run's processes report it."""


class Action(StrEnum):
    NOTHING = "nothing"
    START = "start"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Decision:
    run: Managed
    """As it is to be recorded, before the action."""
    action: Action = Action.NOTHING
    note: str = ""
    """What its watchers shall know."""


def decide(run: Managed, seen: ObservedRun, now: float, times: Times = TIMES) -> Decision:
    """For a run that has devices: follow what it reports, start its launcher, end it, give it up."""
    if seen.presence is Presence.THERE:
        return _while_there(run, seen, now, times)
    if seen.presence is Presence.ENDING:
        if seen.ending_seconds <= times.ending:
            return Decision(run)
        text = "processes that the launcher left behind have not ended; they are killed"
        return Decision(run, Action.KILL, text)
    if run.start_at and not _has_ended_itself(seen):
        return _start(run, now) if _is_due(run, now, times) else Decision(run)
    return _after_death(run, seen, now, times)


def _is_due(run: Managed, now: float, times: Times) -> bool:
    """True also where the clock was set back: no run waits for longer than the longest pause."""
    return not now < run.start_at <= now + times.longest_pause


def _has_ended_itself(seen: ObservedRun) -> bool:
    """Whether the run reported its own end, whatever was planned before."""
    return seen.reported is not None and seen.reported.state in (
        RunState.SUCCEEDED,
        RunState.FAILED,
    )


def _while_there(run: Managed, seen: ObservedRun, now: float, times: Times) -> Decision:
    run = replace(run, start_at=0.0)  # it was taken for dead, and is not
    # What it reports is written under its lease: then it has had one.
    has_begun = seen.reported is not None and seen.reported.starts >= run.starts
    if not seen.has_lease and (has_begun or now - run.launched_at > times.first_lease):
        text = "the launcher is frozen: it has not renewed its lease; it is killed"
        return Decision(run, Action.KILL, text)
    after = _without_gone(run, seen)
    if now - run.launched_at > times.steady:
        after = replace(after, deaths=0)
    reported = seen.reported
    if reported is None:
        return Decision(after)
    after = _with_reported(after, reported)
    # An end counts when its processes are gone: until then its devices are not free. To pause and to
    # cancel is for clients to say, never for processes.
    follows = reported.state in TRANSITIONS[run.state]
    if follows and reported.state in (RunState.STARTING, RunState.RUNNING):
        started = after.started_at or (now if reported.state is RunState.RUNNING else 0.0)
        after = after.go(reported.state, started_at=started)
    return Decision(after)


def _start(run: Managed, now: float) -> Decision:
    if run.goal is Goal.PAUSE:
        return Decision(ended(run, RunState.PAUSED, now))
    if run.goal is Goal.CANCEL:
        return Decision(ended(run, RunState.CANCELLED, now))
    launched = replace(run, start_at=0.0, launched_at=now, starts=run.starts + 1, held="")
    return Decision(launched, Action.START)


def _after_death(run: Managed, seen: ObservedRun, now: float, times: Times) -> Decision:
    reported = seen.reported
    after = _with_reported(run, reported) if reported else run
    if reported and _has_ended_itself(seen):
        return Decision(ended(after, reported.state, now))
    if run.goal is Goal.PAUSE:
        return Decision(ended(after, RunState.PAUSED, now))
    if run.goal is Goal.CANCEL:
        return Decision(ended(after, RunState.CANCELLED, now))
    deaths = 1 if now - run.launched_at > times.steady else run.deaths + 1
    if deaths > times.max_deaths:
        return Decision(ended(_given_up(after, deaths, seen.last_words), RunState.FAILED, now))
    pause = min(times.first_pause * 2 ** (deaths - 1), times.longest_pause)
    after = _without(after, after.leaving)
    again = after.go(RunState.STARTING, deaths=deaths, start_at=now + pause, held="", doing="")
    return Decision(again, note=f"the launcher died; the run starts it again in {pause:g} s")


def ended(run: Managed, state: RunState, now: float) -> Managed:
    """The run without processes: its devices are free."""
    at = now if state.has_ended else 0.0
    return run.go(
        state, grant=NO_GRANT, leaving=frozenset(), start_at=0.0, deaths=0, held="", ended_at=at
    )


def _given_up(run: Managed, deaths: int, last_words: str) -> Managed:
    what = f"its launcher died {deaths} times in a row"
    return replace(
        run,
        error=f"{what}; its last words: {last_words}" if last_words else what,
        remedy=_remedy(run),
    )


def _with_reported(run: Managed, reported: Run) -> Managed:
    remedy = reported.remedy
    if reported.state is RunState.FAILED and not remedy:
        remedy = _remedy(run)
    words = {"error": reported.error, "remedy": remedy, "held": reported.held}
    words = {name: run.without_folder(text) for name, text in words.items()}
    facts = {name: getattr(reported, name) for name in FACTS}
    return replace(run, **facts, **words)


def _remedy(run: Managed) -> str:
    return f"fix what trimaran logs {run.run_id} names, then trimaran resume {run.run_id}"


def _without_gone(run: Managed, seen: ObservedRun) -> Managed:
    """Replicas that were to leave, and have left: their devices are free."""
    gone = frozenset() if seen.replicas is None else run.leaving - seen.replicas
    return _without(run, gone) if gone else run


def _without(run: Managed, gone: frozenset[int]) -> Managed:
    staying = {i: devices for i, devices in run.grant.replicas.items() if i not in gone}
    grant = Grant(run.grant.trainer, staying)
    return replace(run, grant=grant, leaving=run.leaving - gone)
