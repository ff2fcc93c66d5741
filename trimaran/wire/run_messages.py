"""The types of `trimaran/run/runs.py` <-> protobuf."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from google.protobuf import json_format

from trimaran.errors import InputError
from trimaran.run import answers as run_answers
from trimaran.run import runs
from trimaran.v1 import controller_pb2, run_pb2
from trimaran.wire import messages

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
    for name in ("reward", "held_out"):
        if not message.HasField(name):
            plain[name] = None
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
    return run_answers.Checkpoint(
        *(message.step, message.path, message.root, message.kept),
        score=message.score if message.HasField("score") else None,
        num_bytes=message.num_bytes,
        saved_at=message.saved_at,
    )


def encode_samples(samples: run_answers.RunSamples) -> run_pb2.GetSamplesResponse:
    return run_pb2.GetSamplesResponse(
        validation_steps=samples.validation_steps,
        trained_steps=samples.trained_steps,
        samples=map(_encode_sample, samples.samples),
        num_samples=samples.num_samples,
        step=samples.step,
    )


def _encode_sample(sample: run_answers.RunSample) -> run_pb2.Sample:
    plain = {name: getattr(sample, name) for name in SAMPLE_ALIKE}
    episode = sample.episode and _encode_episode(sample.episode)
    return run_pb2.Sample(**plain, episode=episode)


def decode_samples(message: run_pb2.GetSamplesResponse) -> run_answers.RunSamples:
    return run_answers.RunSamples(
        tuple(message.validation_steps),
        tuple(message.trained_steps),
        tuple(map(_decode_sample, message.samples)),
        message.num_samples,
        message.step,
    )


def _decode_sample(sample: run_pb2.Sample) -> run_answers.RunSample:
    plain: dict[str, Any] = {name: getattr(sample, name) for name in SAMPLE_ALIKE}
    plain["terms"] = dict(sample.terms)
    plain["group"] = sample.group if sample.HasField("group") else None
    episode = _decode_episode(sample.episode) if sample.HasField("episode") else None
    return run_answers.RunSample(**plain, episode=episode)


SAMPLE_ALIKE = tuple(name for name in run_answers.RunSample.__slots__ if name != "episode")
"""Fields of a sample whose value is the same in its message."""


def _encode_episode(episode: run_answers.RunEpisode) -> run_pb2.Episode:
    turns = [
        run_pb2.EpisodeTurn(turn=messages.encode_turn(one.turn), versions=one.versions)
        for one in episode.turns
    ]
    return run_pb2.Episode(turns=turns, finish_reason=episode.finish_reason)


def _decode_episode(message: run_pb2.Episode) -> run_answers.RunEpisode:
    turns = tuple(
        run_answers.RunTurn(messages.decode_turn(one.turn), tuple(one.versions))
        for one in message.turns
    )
    return run_answers.RunEpisode(turns, message.finish_reason)


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
