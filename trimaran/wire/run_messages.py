"""The types of `trimaran/run/runs.py` <-> protobuf."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format

from trimaran.errors import InputError
from trimaran.run import answers as run_answers
from trimaran.run import runs
from trimaran.v1 import controller_pb2, run_pb2
from trimaran.wire.messages import mirrored  # turns are mirrored there

STATES = {
    run_pb2.Run.State.Value(f"STATE_{state.name}"): state
    for state in runs.RunState
    if state is not runs.RunState.UNKNOWN
}
EVENT_KINDS = {
    run_pb2.RunEvent.Kind.Value(f"KIND_{kind.name}"): kind
    for kind in runs.EventKind
    if kind is not runs.EventKind.UNKNOWN
}
GOALS = {controller_pb2.Goal.Value(f"GOAL_{goal.name}"): goal for goal in runs.Goal}


NUMBERS = {state: number for number, state in STATES.items()}
KIND_NUMBERS = {kind: number for number, kind in EVENT_KINDS.items()}


def encode_state(state: runs.RunState) -> str:
    """The name on the wire, which every message takes."""
    return f"STATE_{state.name}"


# What this version does not know becomes UNKNOWN.
mirrored(runs.Replicas, run_pb2.Replicas)
encode_run, decode_run = mirrored(
    runs.Run,
    run_pb2.Run,
    state=(NUMBERS.__getitem__, lambda number: STATES.get(number, runs.RunState.UNKNOWN)),
)
encode_event, decode_event = mirrored(
    runs.RunEvent,
    run_pb2.RunEvent,
    kind=(
        KIND_NUMBERS.__getitem__,
        lambda number: EVENT_KINDS.get(number, runs.EventKind.UNKNOWN),
    ),
)
encode_checkpoint, decode_checkpoint = mirrored(run_answers.Checkpoint, run_pb2.Checkpoint)
mirrored(run_answers.RunTurn, run_pb2.EpisodeTurn)
_encode_episode, _decode_episode = mirrored(run_answers.RunEpisode, run_pb2.Episode)
mirrored(run_answers.RunSample, run_pb2.Sample)
encode_samples, decode_samples = mirrored(run_answers.RunSamples, run_pb2.GetSamplesResponse)


def encode_goal(goal: runs.Goal) -> str:
    """The name on the wire, which every message takes."""
    return f"GOAL_{goal.name}"


def decode_goal(value: int) -> runs.Goal:
    """Raises InputError for one that this version does not know."""
    goal = GOALS.get(value)
    if goal is None:
        raise InputError(
            f"goal: {value} is not known here; give one of GOAL_RUN, GOAL_PAUSE, GOAL_CANCEL"
        )
    return goal


def episode_to_tree(episode: run_answers.RunEpisode) -> dict[str, Any]:
    """As a file of samples has it: what is empty or 0 is left out."""
    made = _encode_episode(episode)
    return json_format.MessageToDict(made, preserving_proto_field_name=True)


def episode_from_tree(tree: dict[str, Any]) -> run_answers.RunEpisode:
    return _decode_episode(json_format.ParseDict(tree, run_pb2.Episode()))


def encode_ledger(answer: run_answers.LedgerAnswer) -> run_pb2.GetLedgerResponse:
    return run_pb2.GetLedgerResponse(
        lines=answer.lines, json=json.dumps(answer.facts), sound=answer.sound
    )


def decode_ledger(message: run_pb2.GetLedgerResponse) -> run_answers.LedgerAnswer:
    facts = json.loads(message.json) if message.json else None
    return run_answers.LedgerAnswer(tuple(message.lines), facts, message.sound)
