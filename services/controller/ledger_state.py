"""What the ledger's records say of a run: each group's stage, each step's batch and version.

issued ──▶ generated ──▶ scored ──▶ consumed ──▶ committed
   │           └────────────┴──▶ filtered
   └───────────────┴──▶ skipped          (an open attempt may be reissued as the next one)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from services.controller.records import (
    Began,
    Branched,
    Checkpointed,
    Committed,
    Consumed,
    Filtered,
    Generated,
    Issued,
    LedgerError,
    Opened,
    Record,
    Replayed,
    Scored,
    Skipped,
    Timed,
)
from trimaran.types import Proof, VersionId


class Stage(StrEnum):
    """How far a group has come."""

    ISSUED = "issued"
    GENERATED = "generated"
    SCORED = "scored"
    CONSUMED = "consumed"
    COMMITTED = "committed"
    FILTERED = "filtered"
    SKIPPED = "skipped"


OPEN = (Stage.ISSUED, Stage.GENERATED, Stage.SCORED)
COMES_FROM: dict[Stage, tuple[Stage, ...]] = {
    Stage.GENERATED: (Stage.ISSUED,),
    Stage.SCORED: (Stage.GENERATED,),
    Stage.CONSUMED: (Stage.SCORED,),
    Stage.COMMITTED: (Stage.CONSUMED,),
    Stage.FILTERED: (Stage.GENERATED, Stage.SCORED),
    Stage.SKIPPED: (Stage.ISSUED, Stage.GENERATED),
}


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """Where a group stands now.

    Example:
        ledger.state.groups[17].stage is Stage.SCORED
    """

    attempt: int
    stage: Stage
    payload: str = ""
    """Digest of the scored group; empty before."""
    reason: str = ""
    """Why it was filtered or skipped; else empty."""


@dataclass(frozen=True, slots=True)
class StepEntry:
    """What is known of a step."""

    groups: tuple[int, ...]
    proofs: tuple[Proof, ...] = ()
    """Of the batch's tokens, as they stood when it was consumed."""
    version: VersionId | None = None
    """None until committed."""
    root: str = ""
    nonfinite: str = ""
    """Why optimizer updates of the step were left out; empty where all were made."""
    seconds: float = 0.0


@dataclass(slots=True)
class LedgerState:
    """The sum of all records so far.

    Example:
        state = LedgerState()
        state.apply(Issued(0, 1, "train.jsonl:1"))
        state.with_stage(Stage.ISSUED) == [0]
    """

    groups: dict[int, GroupEntry] = field(default_factory=dict)
    steps: list[StepEntry] = field(default_factory=list)
    """steps[i] is step i + 1; only the last may be uncommitted."""
    began: Began | None = None
    """The weights before the first step."""
    lineage: int = 0
    checkpoints: list[int] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The last committed step."""
        return len(self.steps) - self.has_pending_batch

    @property
    def has_pending_batch(self) -> bool:
        return bool(self.steps) and self.steps[-1].version is None

    @property
    def next_number(self) -> int:
        return max(self.groups, default=-1) + 1

    def with_stage(self, *stages: Stage) -> list[int]:
        return sorted(n for n, entry in self.groups.items() if entry.stage in stages)

    def root_at(self, step: int) -> str:
        if step == 0:
            return self.began.root if self.began else ""
        return self.steps[step - 1].root

    def payloads_after(self, step: int) -> set[str]:
        """What a resume from a checkpoint of `step` may read."""
        groups = [number for entry in self.steps[step:] for number in entry.groups]
        groups += self.with_stage(Stage.SCORED)
        return {self.groups[number].payload for number in groups}

    def apply(self, record: Record) -> None:
        """Raises LedgerError when the record cannot follow what stands."""
        match record:
            case Opened():
                pass
            case Began(version):
                self.began, self.lineage = record, version.lineage
            case Issued(number, attempt):
                self._issue(number, attempt)
            case Generated(number, attempt):
                self._move(number, attempt, Stage.GENERATED)
            case Scored(number, attempt, payload):
                self._move(number, attempt, Stage.SCORED, payload=payload)
            case Filtered(number, attempt, reason):
                self._move(number, attempt, Stage.FILTERED, reason=reason)
            case Skipped(number, attempt, reason):
                self._move(number, attempt, Stage.SKIPPED, reason=reason)
            case Consumed():
                self._consume(record)
            case Committed():
                self._commit(record)
            case Timed(step, seconds):
                self.steps[step - 1] = replace(self.steps[step - 1], seconds=seconds)
            case Branched(_, lineage):
                self.lineage = lineage
            case Replayed():
                self._set_version(record)
            case Checkpointed(step):
                self.checkpoints.append(step)

    def _issue(self, number: int, attempt: int) -> None:
        before = self.groups.get(number)
        if before and (before.stage not in OPEN or attempt <= before.attempt):
            raise LedgerError(
                f"group {number}: attempt {attempt} cannot be issued after attempt"
                f" {before.attempt}, which is {before.stage}"
            )
        self.groups[number] = GroupEntry(attempt, Stage.ISSUED)

    def _move(
        self, number: int, attempt: int, stage: Stage, payload: str = "", reason: str = ""
    ) -> None:
        before = self.groups.get(number)
        if not before or before.attempt != attempt or before.stage not in COMES_FROM[stage]:
            raise LedgerError(f"group {number}, attempt {attempt}: {stage} cannot follow {before}")
        self.groups[number] = replace(
            before, stage=stage, payload=payload or before.payload, reason=reason
        )

    def _consume(self, record: Consumed) -> None:
        if record.step != len(self.steps) + 1 or self.has_pending_batch:
            raise LedgerError(f"step {record.step} cannot follow step {self.step}")
        for number, attempt in record.groups:
            self._move(number, attempt, Stage.CONSUMED)
        self.steps.append(StepEntry(tuple(number for number, _ in record.groups), record.proofs))

    def _commit(self, record: Committed) -> None:
        step = record.version.step
        if step != len(self.steps) or not self.has_pending_batch:
            raise LedgerError(f"step {step} was not consumed, so it cannot be committed")
        for number in self.steps[-1].groups:
            self._move(number, self.groups[number].attempt, Stage.COMMITTED)
        self._set_version(record)

    def _set_version(self, record: Committed | Replayed) -> None:
        place = record.version.step - 1
        self.steps[place] = replace(
            self.steps[place],
            version=record.version,
            root=record.root,
            nonfinite=record.nonfinite,
        )
