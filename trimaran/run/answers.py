"""What a run's manager tells beside its runs: checkpoints, samples, lives of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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


@dataclass(frozen=True, slots=True)
class RunSamples:
    """Answers of one step, and which steps there are to ask for.

    Example: [sample.reward for sample in samples.samples]
    """

    validation_steps: tuple[int, ...]
    trained_steps: tuple[int, ...]
    samples: tuple[RunSample, ...]
    num_samples: int = 0
    """How many samples the step has; `samples` are some of them."""
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
