"""A run's states, and how a run and its events travel and are kept."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.errors import InputError
from trimaran.run.runs import (
    EventKind,
    Goal,
    Replicas,
    Run,
    RunEvent,
    RunState,
    event_from_tree,
    event_to_tree,
    run_from_tree,
    run_to_tree,
)
from trimaran.v1 import controller_pb2, run_pb2
from trimaran.wire import run_messages as run_wire

texts, uint32, int32 = st.text(), st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1)
numbers = st.floats(allow_nan=False)
states = st.sampled_from(sorted(run_wire.STATES.values()))
kinds = st.sampled_from(sorted(run_wire.EVENT_KINDS.values()))
replicas = st.builds(Replicas, uint32, uint32, uint32)
by_type = {
    "float | None": st.none() | numbers,
    "str": texts,
    "int": uint32,
    "float": numbers,
    "RunState": states,
    "Replicas": replicas,
}
runs = st.builds(
    Run,
    **{field.name: by_type[str(field.type)] for field in fields(Run) if field.name != "priority"},
    priority=int32,
)
events = st.builds(RunEvent, uint32, kinds, runs, st.dictionaries(texts, numbers), texts, numbers)


@given(runs)
def test_a_run_crosses_the_wire_and_the_store(run: Run) -> None:
    message = run_pb2.Run.FromString(run_wire.encode_run(run).SerializeToString())
    assert run_wire.decode_run(message) == run
    assert run_from_tree(json.loads(json.dumps(run_to_tree(run)))) == run


@given(events)
def test_an_event_crosses_the_wire_and_the_store(event: RunEvent) -> None:
    message = run_pb2.RunEvent.FromString(run_wire.encode_event(event).SerializeToString())
    assert run_wire.decode_event(message) == event
    tree = json.loads(json.dumps(event_to_tree(event)))
    assert event_from_tree(event.sequence, tree) == event


def test_a_run_of_an_earlier_version_has_fewer_fields() -> None:
    tree = {"run_id": "r", "state": "failed", "step": 3, "num_steps": 9, "gone": 1}
    assert run_from_tree(tree) == Run("r", RunState.FAILED, 3, 9)


def test_every_state_and_kind_has_its_number_on_the_wire() -> None:
    known = {name.removeprefix("STATE_").lower() for name in run_pb2.Run.State.keys()}  # noqa: SIM118
    assert known - {"unspecified"} == set(RunState) - {RunState.UNKNOWN}
    kinds = {name.removeprefix("KIND_").lower() for name in run_pb2.RunEvent.Kind.keys()}  # noqa: SIM118
    assert kinds - {"unspecified"} == set(EventKind) - {EventKind.UNKNOWN}


@pytest.mark.parametrize("number", [0, max(run_wire.EVENT_KINDS) + 1])
def test_what_a_newer_service_says_is_unknown(number: int) -> None:
    message = run_pb2.RunEvent(kind=number, run=run_pb2.Run(state=number + 90), text="news")  # pyright: ignore
    event = run_wire.decode_event(run_pb2.RunEvent.FromString(message.SerializeToString()))
    assert (event.kind, event.text) == (EventKind.UNKNOWN, "news")
    assert event.run.state is RunState.UNKNOWN


def test_a_goal_crosses_the_wire_and_an_unknown_one_is_refused() -> None:
    for goal in Goal:
        message = controller_pb2.SetGoalRequest(goal=run_wire.encode_goal(goal))
        assert run_wire.decode_goal(message.goal) is goal
    with pytest.raises(InputError, match="goal: 0"):
        run_wire.decode_goal(0)
