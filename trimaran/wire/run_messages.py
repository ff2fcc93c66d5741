"""The types of `trimaran/run/runs.py` <-> protobuf."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from trimaran.errors import InputError
from trimaran.run import answers as run_answers
from trimaran.run import runs
from trimaran.v1 import controller_pb2, run_pb2

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


ALIKE = tuple(name for name in runs.Run.__slots__ if name not in ("state", "replicas"))
"""Fields of a run whose value is the same in its message."""


def encode_state(state: runs.RunState) -> str:
    """The name on the wire, which every message takes."""
    return f"STATE_{state.name}"


def encode_run(run: runs.Run) -> run_pb2.Run:
    replicas = run.replicas
    return run_pb2.Run(
        state=encode_state(run.state),
        replicas=run_pb2.Replicas(min=replicas.min, max=replicas.max, granted=replicas.granted),
        **{name: getattr(run, name) for name in ALIKE},
    )


def decode_run(message: run_pb2.Run) -> runs.Run:
    """A state that this version does not know becomes UNKNOWN."""
    plain: dict[str, Any] = {name: getattr(message, name) for name in ALIKE}
    if not message.HasField("reward"):
        plain["reward"] = None
    replicas = message.replicas
    return runs.Run(
        state=STATES.get(message.state, runs.RunState.UNKNOWN),
        replicas=runs.Replicas(replicas.min, replicas.max, replicas.granted),
        **plain,
    )


def encode_event(event: runs.RunEvent) -> run_pb2.RunEvent:
    return run_pb2.RunEvent(
        sequence=event.sequence,
        kind=f"KIND_{event.kind.name}",
        run=encode_run(event.run),
        values=event.values,
        text=event.text,
        time=event.time,
        root=event.root,
    )


def decode_event(message: run_pb2.RunEvent) -> runs.RunEvent:
    return runs.RunEvent(
        message.sequence,
        EVENT_KINDS.get(message.kind, runs.EventKind.UNKNOWN),
        decode_run(message.run),
        dict(message.values),
        message.text,
        message.time,
        message.root,
    )


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


def encode_checkpoint(checkpoint: run_answers.Checkpoint) -> run_pb2.Checkpoint:
    return run_pb2.Checkpoint(**asdict(checkpoint))


def decode_checkpoint(message: run_pb2.Checkpoint) -> run_answers.Checkpoint:
    return run_answers.Checkpoint(message.step, message.path, message.root, message.kept)


def encode_samples(samples: run_answers.RunSamples) -> run_pb2.GetSamplesResponse:
    plain = asdict(samples)
    plain["samples"] = [run_pb2.Sample(**sample) for sample in plain["samples"]]
    return run_pb2.GetSamplesResponse(**plain)


def decode_samples(message: run_pb2.GetSamplesResponse) -> run_answers.RunSamples:
    return run_answers.RunSamples(
        tuple(message.validation_steps),
        tuple(message.trained_steps),
        tuple(map(_decode_sample, message.samples)),
        message.num_samples,
        message.step,
    )


def _decode_sample(sample: run_pb2.Sample) -> run_answers.RunSample:
    plain: dict[str, Any] = {
        name: getattr(sample, name) for name in run_answers.RunSample.__slots__
    }
    plain["terms"] = dict(sample.terms)
    return run_answers.RunSample(**plain)


def encode_ledger(answer: run_answers.LedgerAnswer) -> run_pb2.GetLedgerResponse:
    return run_pb2.GetLedgerResponse(
        lines=answer.lines, json=json.dumps(answer.facts), sound=answer.sound
    )


def decode_ledger(message: run_pb2.GetLedgerResponse) -> run_answers.LedgerAnswer:
    facts = json.loads(message.json) if message.json else None
    return run_answers.LedgerAnswer(tuple(message.lines), facts, message.sound)
