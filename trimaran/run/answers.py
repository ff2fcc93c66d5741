"""What a run's manager tells beside its runs: checkpoints, samples, lives of groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from trimaran.types import Completion, Message, Segment, Turn, VersionId


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Example: [checkpoint.path for checkpoint in checkpoints if checkpoint.kept][-1]"""

    step: int
    path: str
    """On the manager's machine."""
    root: str
    """The root of its weights."""
    kept: bool
    """It is still there. Older ones are removed: `run.keep_checkpoints` and `run.keep_best` say
    how many stay."""
    score: float | None = None
    """How good its step is by `run.best_by`, of one that is kept, where that is known; more is better."""
    num_bytes: int = 0
    """The size of one that is kept."""
    saved_at: float = 0.0
    """Unix seconds; 0 where it is not recorded."""


@dataclass(frozen=True, slots=True)
class RunTurn:
    """One turn of an episode, without its images, and who made it.

    Example: RunTurn(turn, versions=("0.7",)).turn.message.text
    """

    turn: Turn
    versions: tuple[str, ...]
    """More than one where the weights changed within the turn."""


@dataclass(frozen=True, slots=True)
class RunEpisode:
    """A conversation of the model with its environment. Example: len(RunEpisode.of(completion).turns)"""

    turns: tuple[RunTurn, ...]
    finish_reason: str

    @classmethod
    def of(cls, completion: Completion) -> RunEpisode | None:
        """None where it is no episode."""
        if not completion.turns:
            return None
        sequences = (completion.segments, *(branch.segments for branch in completion.branches))
        makers = {number: _makers(segments) for number, segments in enumerate(sequences)}
        turns: list[RunTurn] = []
        for turn in completion.turns:
            made = dict.fromkeys(islice(makers[turn.sequence], turn.num_sampled))
            turns.append(RunTurn(_without_images(turn), tuple(map(str, made))))
        return cls(tuple(turns), completion.finish_reason)


def _makers(segments: Sequence[Segment]) -> Iterator[VersionId]:
    """The version of each sampled token of a sequence."""
    return (one.version for one in segments for _ in range(one.end - one.start))


def _without_images(turn: Turn) -> Turn:
    def bare(message: Message) -> Message:
        return replace(message, images=())

    return replace(turn, message=bare(turn.message), replies=tuple(map(bare, turn.replies)))


@dataclass(frozen=True, slots=True)
class RunSample:
    """One answer of the model, and what it was worth.

    Example: RunSample("train.jsonl:7", "What is 2 + 3?", "5", reference="5", reward=1.0)
    """

    prompt_id: str
    prompt: str
    answer: str
    reference: str
    """The reference answer."""
    reward: float
    terms: Mapping[str, float] = field(default_factory=dict[str, float])
    fault: str = ""
    """Why it has no reward; empty where it has one."""
    episode: RunEpisode | None = None
    """Where it had several turns; `answer` is the last one's."""
    place: int = 0
    """Its place among the step's samples, from 0 on."""
    group: int | None = None
    """Its group's number in the ledger; None for a validation's."""
    number: int = 0
    """Its place among the answers to its prompt, from 0 on."""
    greedy: bool = False
    """At temperature 0."""
    num_images: int = 0
    """Images of its prompt that are kept."""


@dataclass(frozen=True, slots=True)
class RunSamples:
    """Answers of one step, and which steps there are to ask for.

    Example: [sample.reward for sample in samples.samples]
    """

    validation_steps: tuple[int, ...]
    trained_steps: tuple[int, ...]
    samples: tuple[RunSample, ...]
    num_samples: int = 0
    """How many samples the step has, of those that were asked for; `samples` are some of them."""
    step: int = 0
    """The step that they are of."""


@dataclass(frozen=True, slots=True)
class LedgerAnswer:
    """The life of a group, or what the whole ledger adds up to."""

    lines: tuple[str, ...]
    """The answer in plain words."""
    facts: Any
    """The same as JSON holds it."""
    sound: bool = True
    """Whether the whole ledger is sound."""
