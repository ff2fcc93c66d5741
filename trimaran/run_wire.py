"""The types of `trimaran/runs.py` <-> protobuf."""

from __future__ import annotations

import json

from trimaran import run_answers, runs
from trimaran.errors import InputError
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


def encode_state(state: runs.RunState) -> str:
    """The name on the wire, which every message takes."""
    return f"STATE_{state.name}"


def encode_run(run: runs.Run) -> run_pb2.Run:
    return run_pb2.Run(
        run_id=run.run_id,
        state=encode_state(run.state),
        step=run.step,
        num_steps=run.num_steps,
        error=run.error,
        name=run.name,
        owner=run.owner,
        priority=run.priority,
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        remedy=run.remedy,
        held=run.held,
        waiting_for=run.waiting_for,
        replicas=run_pb2.Replicas(
            min=run.replicas.min, max=run.replicas.max, granted=run.replicas.granted
        ),
        folder=run.folder,
        starts=run.starts,
        reward=run.reward,
    )


def decode_run(message: run_pb2.Run) -> runs.Run:
    """A state that this version does not know becomes UNKNOWN."""
    replicas = message.replicas
    return runs.Run(
        run_id=message.run_id,
        state=STATES.get(message.state, runs.RunState.UNKNOWN),
        step=message.step,
        num_steps=message.num_steps,
        error=message.error,
        name=message.name,
        owner=message.owner,
        priority=message.priority,
        created_at=message.created_at,
        started_at=message.started_at,
        ended_at=message.ended_at,
        remedy=message.remedy,
        held=message.held,
        waiting_for=message.waiting_for,
        replicas=runs.Replicas(replicas.min, replicas.max, replicas.granted),
        folder=message.folder,
        starts=message.starts,
        reward=message.reward if message.HasField("reward") else None,
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
    return run_pb2.Checkpoint(
        step=checkpoint.step, path=checkpoint.path, root=checkpoint.root, kept=checkpoint.kept
    )


def decode_checkpoint(message: run_pb2.Checkpoint) -> run_answers.Checkpoint:
    return run_answers.Checkpoint(message.step, message.path, message.root, message.kept)


def encode_samples(samples: run_answers.RunSamples) -> run_pb2.GetSamplesResponse:
    return run_pb2.GetSamplesResponse(
        validation_steps=samples.validation_steps,
        trained_steps=samples.trained_steps,
        samples=[
            run_pb2.Sample(
                prompt_id=sample.prompt_id,
                prompt=sample.prompt,
                answer=sample.answer,
                reference=sample.reference,
                reward=sample.reward,
                terms=sample.terms,
                fault=sample.fault,
            )
            for sample in samples.samples
        ],
        num_samples=samples.num_samples,
        step=samples.step,
    )


def decode_samples(message: run_pb2.GetSamplesResponse) -> run_answers.RunSamples:
    return run_answers.RunSamples(
        tuple(message.validation_steps),
        tuple(message.trained_steps),
        tuple(
            run_answers.RunSample(
                sample.prompt_id,
                sample.prompt,
                sample.answer,
                sample.reference,
                sample.reward,
                dict(sample.terms),
                sample.fault,
            )
            for sample in message.samples
        ),
        message.num_samples,
        message.step,
    )


def encode_ledger(answer: run_answers.LedgerAnswer) -> run_pb2.GetLedgerResponse:
    return run_pb2.GetLedgerResponse(
        lines=answer.lines, json=json.dumps(answer.facts), sound=answer.sound
    )


def decode_ledger(message: run_pb2.GetLedgerResponse) -> run_answers.LedgerAnswer:
    facts = json.loads(message.json) if message.json else None
    return run_answers.LedgerAnswer(tuple(message.lines), facts, message.sound)
