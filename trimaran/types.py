"""The nouns that travel between services.

Each stage wraps the one before it, so a type says which stage you are in:
Prompt -> Group -> ScoredGroup -> TrainingBatch, and PolicyVersion on the way back.

Axes: T tokens of one completion, G completions of one group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the run, and the fencing epoch of its controller."""

    run_id: str
    epoch: int


@dataclass(frozen=True, slots=True, order=True)
class VersionId:
    """The weights after `step` optimizer steps in one lineage of a run."""

    lineage: int
    step: int

    def __str__(self) -> str:
        return f"{self.lineage}.{self.step}"


class VersionState(StrEnum):
    STAGING = "staging"
    ACTIVE = "active"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    run_id: str
    version: VersionId
    root: str
    """Hex digest over the manifest of the version's tensors."""
    state: VersionState


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    """Hugging Face name."""
    dtype: str
    """As safetensors spells it: BF16, F32, …"""
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version's tensors, in the order in which they are sent."""

    digest_name: str
    tensors: tuple[TensorInfo, ...]
    root: str


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """One sender (rank 0) and its receivers (ranks 1 to world_size - 1)."""

    group_id: int
    nonce: str
    world_size: int
    rendezvous: str
    """host:port of the sender's store; empty until the sender has opened it."""


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Routing:
    live: PolicyVersion | None
    """None until a version is live."""
    routable: tuple[Replica, ...]
    unroutable: Mapping[str, str] = field(default_factory=dict)
    """Registered replicas that do not hold the live version, each with its fault.

    The text is empty while a replica has no fault and is only about to take the version.
    """

    @property
    def faults(self) -> dict[str, str]:
        return {name: fault for name, fault in self.unroutable.items() if fault}

    def describe_unroutable(self) -> str:
        """Example: "rollout-0: connection refused; rollout-1: has no fault, is being updated"."""
        replicas = sorted(self.unroutable.items())
        return "; ".join(
            f"{name}: {fault or 'has no fault, is being updated'}" for name, fault in replicas
        )


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    text: str
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Example: Prompt("train.jsonl:1", (Message("user", "What is 1 + 2?"),), "addition", "3")."""

    prompt_id: str
    messages: tuple[Message, ...]
    task: str
    answer: str
    extras: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float
    """0 means greedy; log-probabilities are then at temperature 1."""
    max_tokens: int
    num_samples: int
    seed: int = 0
    """Used by engines that can sample reproducibly."""


class Origin(StrEnum):
    GENERATED = "generated"
    GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens start..end (exclusive) of a completion, made by one version on one replica."""

    start: int
    end: int
    version: VersionId
    origin: Origin
    replica: str


@dataclass(frozen=True, slots=True)
class PartialCompletion:
    """What an interrupted completion already has; another replica goes on from there."""

    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    """At the sampling temperature."""
    text: str
    finish_reason: str
    """"stop" (end of sequence, kept as the last token) or "length"."""
    segments: tuple[Segment, ...]
    """Cover 0..T without gaps."""


@dataclass(frozen=True, slots=True)
class Group:
    number: int
    """Place in prompt order; with `attempt` the key of the group's ledger records."""
    attempt: int
    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    completions_G: tuple[Completion, ...]


@dataclass(frozen=True, slots=True)
class Score:
    reward: float
    terms: Mapping[str, float] = field(default_factory=dict)
    """The reward's named parts, unweighted."""
    unscoreable: bool = False
    """No checker could digest the answer, twice: the reward is the rule's minimum."""


@dataclass(frozen=True, slots=True)
class Unscored:
    """A fault of ours (transport, crash, overload); it never trains the model."""

    fault: str


Verdict = Score | Unscored


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    group: Group
    verdicts_G: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    step: int
    groups: tuple[ScoredGroup, ...]
    """In prompt order."""


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    state: RunState
    step: int
    num_steps: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class RunEvent:
    sequence: int
    kind: str
    """state, step, validation, skipped, replica_lost, checkpoint or finished."""
    run: Run
    values: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
