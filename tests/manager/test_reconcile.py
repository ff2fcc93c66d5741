"""What the manager does about each thing that it can see of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.manager.reconcile import Action, Decision, ObservedRun, Times, decide
from services.manager.records import Managed, from_tree, to_tree
from services.manager.scheduling.pools import Grant, Need, PoolDevice
from trimaran.run.launchers import Presence
from trimaran.run.runs import ACTIVE, TRANSITIONS, Goal, Run, RunState

NOW = 1000.0
GRANT = Grant((PoolDevice("x", "0"),), {0: (PoolDevice("x", "1"),), 1: (PoolDevice("x", "2"),)})


def run(state: RunState = RunState.RUNNING, **more: Any) -> Managed:
    given: dict[str, Any] = {
        "run_id": "demo-1",
        "name": "demo",
        "owner": "ann",
        "request_id": "r",
        "priority": 0,
        "created_at": 1.0,
        "folder": "/runs/demo-1",
        "store_url": "sqlite:/runs/demo-1/store.sqlite",
        "config": {},
        "num_steps": 20,
        "trainer": Need("cuda", 1),
        "replica": Need("cuda", 1),
        "min_replicas": 1,
        "max_replicas": 2,
        "queued_at": 1.0,
        "state": state,
        "grant": GRANT,
        "starts": 1,
        "launched_at": NOW - 10,
    }
    return Managed(**given | more)


def seen(presence: Presence, state: RunState | None = None, **more: Any) -> ObservedRun:
    reported = (
        Run("demo-1", state, 7, 20, reward=0.5, held_out=0.75, ends_at=9.0, doing="validating")
        if state
        else None
    )
    return ObservedRun(presence, more.pop("has_lease", True), reported, **more)


def look(run: Managed, seen: ObservedRun, now: float = NOW) -> Decision:
    return decide(run, seen, now, Times(max_deaths=2))


def test_follows_what_the_processes_report() -> None:
    after = look(run(RunState.STARTING), seen(Presence.THERE, RunState.RUNNING))
    assert (after.run.state, after.run.step, after.run.started_at) == (RunState.RUNNING, 7, NOW)
    view = after.run.view
    assert (view.reward, view.held_out, view.ends_at) == (0.5, 0.75, 9.0)
    assert after.action is Action.NOTHING and view.doing == "validating"
    ended = look(after.run, seen(Presence.GONE, RunState.SUCCEEDED))
    assert ended.run.view.doing == ""
    again = look(run(), seen(Presence.THERE, RunState.STARTING))
    assert again.run.state is RunState.STARTING  # its controller died


def test_the_view_counts_the_accelerators_that_the_run_holds() -> None:
    assert run().view.devices == len(GRANT.devices) > 0
    assert run(trainer=Need("cpu", 1)).view.devices == len(GRANT.devices) - len(GRANT.trainer)
    assert run(trainer=Need("cpu", 1), replica=Need("cpu", 1)).view.devices == 0
    assert look(run(), seen(Presence.GONE, RunState.SUCCEEDED)).run.view.devices == 0


def test_a_launcher_that_has_begun_is_frozen_as_soon_as_its_lease_has_ended() -> None:
    before = ObservedRun(Presence.THERE, False, Run("demo-1", RunState.RUNNING, 7, 20, starts=1))
    assert look(run(starts=1), before).action is Action.KILL
    # That is of the launcher before this one, which still loads.
    assert look(run(starts=2), before).action is Action.NOTHING
    assert look(run(starts=2, launched_at=NOW - 100), before).action is Action.KILL


def test_starts_a_launcher_when_its_time_has_come() -> None:
    due = run(RunState.STARTING, start_at=NOW + 5, launched_at=0.0)
    assert look(due, seen(Presence.GONE)) == Decision(due)
    after = look(due, seen(Presence.GONE), NOW + 5)
    assert after.action is Action.START and (after.run.starts, after.run.start_at) == (2, 0.0)


def test_a_launcher_that_is_there_after_all_is_not_started_again_when_it_ends() -> None:
    """It was taken for dead. What was planned for that case falls away as soon as it is seen."""
    planned = look(run(RunState.STARTING), seen(Presence.GONE)).run
    assert planned.start_at == NOW + 2
    alive = look(planned, seen(Presence.THERE, RunState.RUNNING), NOW + 1)
    assert (alive.run.state, alive.run.start_at) == (RunState.RUNNING, 0.0)
    frozen = look(planned, seen(Presence.THERE, has_lease=False), NOW + 100)
    assert (frozen.action, frozen.run.start_at) == (Action.KILL, 0.0)


def test_an_end_that_was_reported_wins_over_a_start_that_was_planned() -> None:
    for start_at in (NOW - 1, NOW + 1):
        planned = run(RunState.STARTING, start_at=start_at)
        for state in (RunState.SUCCEEDED, RunState.FAILED):
            after = look(planned, seen(Presence.GONE, state))
            assert (after.action, after.run.state) == (Action.NOTHING, state)
            assert (after.run.start_at, after.run.starts, after.run.grant) == (0.0, 1, Grant())


def test_a_launcher_without_a_lease_has_time_to_start_and_no_more() -> None:
    young = run(RunState.STARTING, launched_at=NOW - 59)
    assert look(young, seen(Presence.THERE, has_lease=False)).action is Action.NOTHING
    old = run(RunState.STARTING, launched_at=NOW - 61)
    assert look(old, seen(Presence.THERE, has_lease=False)).action is Action.KILL


def test_pauses_grow_and_the_budget_ends() -> None:
    first = look(run(), seen(Presence.GONE, RunState.RUNNING)).run
    assert (first.state, first.deaths, first.start_at) == (RunState.STARTING, 1, NOW + 2)
    assert not first.view.doing
    second = look(replace(first, start_at=0.0), seen(Presence.GONE)).run
    assert (second.deaths, second.start_at) == (2, NOW + 4)
    third = look(replace(second, start_at=0.0), seen(Presence.GONE, last_words="no disk")).run
    assert third.state is RunState.FAILED
    assert "3 times" in third.error and "no disk" in third.error and "resume" in third.remedy


def test_paused_and_cancelled_although_the_launcher_died_on_the_way() -> None:
    pausing = run(RunState.PAUSING, goal=Goal.PAUSE)
    assert look(pausing, seen(Presence.GONE, RunState.RUNNING)).run.state is RunState.PAUSED
    cancelling = run(RunState.CANCELLING, goal=Goal.CANCEL)
    assert look(cancelling, seen(Presence.GONE)).run.state is RunState.CANCELLED
    assert look(pausing, seen(Presence.GONE, RunState.SUCCEEDED)).run.state is RunState.SUCCEEDED


def test_devices_are_free_when_their_replica_has_gone() -> None:
    leaving = run(leaving=frozenset({1}))
    still = look(leaving, seen(Presence.THERE, replicas=frozenset({0, 1}))).run
    assert still.grant == GRANT
    gone = look(leaving, seen(Presence.THERE, replicas=frozenset({0}))).run
    assert list(gone.grant.replicas) == [0] and gone.leaving == frozenset()
    unknown = look(leaving, seen(Presence.THERE)).run
    assert unknown.grant == GRANT
    died = look(leaving, seen(Presence.GONE)).run
    assert list(died.grant.replicas) == [0] and died.leaving == frozenset()


GOALS = {RunState.PAUSING: Goal.PAUSE, RunState.CANCELLING: Goal.CANCEL}
"""As RunService sets them with the state; Goal.RUN in every other."""
OWN_ENDS = (RunState.SUCCEEDED, RunState.FAILED)
"""That a run comes to without being asked."""
runs = st.builds(
    lambda **given: run(**given, goal=GOALS.get(given["state"], Goal.RUN)),
    state=st.sampled_from(sorted(ACTIVE)),
    start_at=st.sampled_from((0.0, NOW - 1, NOW + 1)),
    launched_at=st.sampled_from((0.0, NOW - 1, NOW - 100, NOW - 1000)),
    deaths=st.integers(0, 6),
    leaving=st.sampled_from((frozenset[int](), frozenset({1}))),
)
sights = st.builds(
    ObservedRun,
    st.sampled_from(list(Presence)),
    st.booleans(),
    st.none()
    | st.builds(
        Run, st.just("demo-1"), st.sampled_from(list(TRANSITIONS)), st.just(7), st.just(20)
    ),
    st.none() | st.frozensets(st.integers(0, 2)),
)


@given(runs, sights)
def test_whatever_is_seen_the_table_of_states_holds(run: Managed, seen: ObservedRun) -> None:
    decision = decide(run, seen, NOW)
    after = decision.run
    assert after.state is run.state or after.state in TRANSITIONS[run.state]
    if not after.state.has_processes:
        assert seen.presence is Presence.GONE and not after.grant.devices
    if decision.action is Action.START:
        assert seen.presence is Presence.GONE and after.state.has_processes
        # Nobody has asked for it: `seen.reported` is of the time since somebody did.
        assert not seen.reported or seen.reported.state not in OWN_ENDS
    if seen.presence is Presence.THERE:
        assert not after.start_at
    if decision.action is Action.KILL:
        assert seen.presence is Presence.THERE and not seen.has_lease


@given(runs)
def test_records_come_back_as_they_were(run: Managed) -> None:
    assert from_tree(to_tree(run)) == run


def test_what_a_launcher_left_behind_is_killed_in_the_end() -> None:
    """A stopped process whose guardian was killed, too, would keep its devices for ever."""
    for seconds, action in ((29.0, Action.NOTHING), (31.0, Action.KILL)):
        after = look(run(), seen(Presence.ENDING, ending_seconds=seconds))
        assert (after.action, after.run) == (action, run())
