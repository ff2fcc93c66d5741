"""What the ledger's records say of a run: each open group's stage, the last steps, and counters.

issued ──▶ generated ──▶ scored ──▶ consumed ──▶ committed
   │           └────────────┴──▶ filtered
   └───────────────┴──▶ skipped          (an open attempt may be reissued as the next one)

Its size does not grow with the run. A group that has ended leaves its number only, and all numbers
up to the first open group are one. Steps before the oldest kept checkpoint leave counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from trimaran.ledger.number_set import Numbers
from trimaran.ledger.records import (
    Began,
    Branched,
    Checkpointed,
    Committed,
    Compacted,
    Consumed,
    Filtered,
    Generated,
    Issued,
    LedgerError,
    Opened,
    Planned,
    Record,
    Replayed,
    Retried,
    Scored,
    Skipped,
    Tainted,
    Timed,
    decode_proof,
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
    """Where a group stands that has not ended.

    Example: ledger.state.groups[17].stage is Stage.SCORED
    """

    attempt: int
    stage: Stage
    payload: str = ""
    """Digest of the scored group; empty before."""


@dataclass(frozen=True, slots=True)
class StepEntry:
    """What is known of a step."""

    groups: tuple[int, ...]
    payloads: tuple[str, ...]
    """The payload of each group."""
    proofs: tuple[Proof, ...] = ()
    """Proofs of the batch's tokens, as they stood when it was consumed."""
    version: VersionId | None = None
    """None until committed."""
    root: str = ""
    nonfinite: str = ""
    """Why optimizer updates of the step were left out; empty where all were made."""
    seconds: float = 0.0
    num_steps: int = 0
    """Steps of the run, as it was planned when the batch was chosen."""


@dataclass(slots=True)
class Totals:
    """Counted over the whole run."""

    committed: int = 0
    """Groups, as the next two."""
    filtered: int = 0
    skipped: int = 0
    reissues: int = 0
    nonfinite_steps: int = 0
    tainted_groups: int = 0
    """They trained, and later a fault was found in the weights that made them; once for each replica."""
    timed_groups: int = 0
    """In steps whose seconds are known: a controller that died did not time its last one."""
    timed_seconds: float = 0.0


@dataclass(slots=True)
class LedgerState:
    """The sum of all records so far.

    Example:
        state = LedgerState()
        state.apply(Issued(0, 1, "train.jsonl:1"))
        state.with_stage(Stage.ISSUED) == [0]
    """

    groups: dict[int, GroupEntry] = field(default_factory=dict[int, GroupEntry])
    """Those that have not ended."""
    ended: Numbers = field(default_factory=Numbers)
    """Groups that were committed, filtered or skipped."""
    next_number: int = 0
    """No group of this number or a higher one was issued."""
    steps: dict[int, StepEntry] = field(default_factory=dict[int, StepEntry])
    """From the oldest kept checkpoint's on; only the last may be uncommitted."""
    step: int = 0
    """The last committed one."""
    began: Began | None = None
    """The weights before the first step."""
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """Those that a resume may change, as they are now."""
    lineage: int = 0
    checkpoints: list[int] = field(default_factory=list[int])
    """The kept ones."""
    totals: Totals = field(default_factory=Totals)
    num_faults: int = 0
    """How many of weight sync's faults were dealt with when tokens that they taint had trained."""

    @property
    def has_pending_batch(self) -> bool:
        return self.step + 1 in self.steps

    @property
    def oldest_step(self) -> int:
        """No resume begins before it."""
        return self.checkpoints[0] if self.checkpoints else 0

    @property
    def unissued(self) -> list[int]:
        """Numbers that were passed over: a controller died between a number and its first issue."""
        return [n for n in self.ended.missing(self.next_number) if n not in self.groups]

    def with_stage(self, *stages: Stage) -> list[int]:
        return sorted(n for n, entry in self.groups.items() if entry.stage in stages)

    def count_stages(self) -> dict[str, float]:
        """Groups that have not ended, by stage."""
        counts = Counter(entry.stage for entry in self.groups.values())
        return {stage.value: counts[stage] for stage in (*OPEN, Stage.CONSUMED)}

    def root_at(self, step: int) -> str:
        """Raises LedgerError for a step before the oldest kept checkpoint."""
        if step == 0:
            return self.began.root if self.began else ""
        if step not in self.steps:
            raise LedgerError(
                f"step {step}: its details are no longer kept; the oldest kept checkpoint is of"
                f" step {self.oldest_step}"
            )
        return self.steps[step].root

    def payloads_after(self, step: int) -> set[str]:
        """What a resume from a checkpoint of `step` may read."""
        waiting = (self.groups[number].payload for number in self.with_stage(Stage.SCORED))
        return {
            *(p for number, entry in self.steps.items() if number > step for p in entry.payloads),
            *waiting,
        }

    def apply(self, record: Record) -> None:
        """Raises LedgerError when the record cannot follow what stands."""
        match record:
            case Opened() | Compacted() | Retried():
                pass
            case Began(version):
                self.began, self.lineage = record, version.lineage
            case Planned(_, settings):
                self.settings |= settings
            case Issued(number, attempt):
                self._issue(number, attempt)
            case Generated(number, attempt):
                self._move(number, attempt, Stage.GENERATED)
            case Scored(number, attempt, payload):
                self._move(number, attempt, Stage.SCORED, payload)
            case Filtered(number, attempt):
                self._end(number, attempt, Stage.FILTERED)
                self.totals.filtered += 1
            case Skipped(number, attempt):
                self._end(number, attempt, Stage.SKIPPED)
                self.totals.skipped += 1
            case Consumed():
                self._consume(record)
            case Committed():
                self._commit(record)
            case Timed(step, seconds):
                self._time(step, seconds)
            case Branched(_, lineage):
                self.lineage = lineage
            case Replayed():
                self._set_version(record)
            case Tainted():
                self.totals.tainted_groups += len(record.groups)
                self.num_faults = max(self.num_faults, record.num_faults)
            case Checkpointed(step, _, oldest):
                self._keep_from(oldest, step)

    def _issue(self, number: int, attempt: int) -> None:
        before = self.groups.get(number)
        if number in self.ended:
            raise LedgerError(f"group {number}: attempt {attempt} cannot be issued: it has ended")
        if before and (before.stage not in OPEN or attempt <= before.attempt):
            raise LedgerError(
                f"group {number}: attempt {attempt} cannot be issued after attempt"
                f" {before.attempt}, which is {before.stage}"
            )
        self.groups[number] = GroupEntry(attempt, Stage.ISSUED)
        self.next_number = max(self.next_number, number + 1)
        self.totals.reissues += before is not None

    def _move(self, number: int, attempt: int, stage: Stage, payload: str = "") -> None:
        before = self.groups.get(number)
        if not before or before.attempt != attempt or before.stage not in COMES_FROM[stage]:
            stands = before or ("its end" if number in self.ended else "nothing")
            raise LedgerError(f"group {number}, attempt {attempt}: {stage} cannot follow {stands}")
        self.groups[number] = replace(before, stage=stage, payload=payload or before.payload)

    def _end(self, number: int, attempt: int, stage: Stage) -> None:
        self._move(number, attempt, stage)
        del self.groups[number]
        self.ended.add(number)

    def _consume(self, record: Consumed) -> None:
        if record.step != self.step + 1 or self.has_pending_batch:
            raise LedgerError(f"step {record.step} cannot follow step {self.step}")
        for number, attempt in record.groups:
            self._move(number, attempt, Stage.CONSUMED)
        numbers = tuple(number for number, _ in record.groups)
        payloads = tuple(self.groups[number].payload for number in numbers)
        num_steps = self.settings.get("run.steps", 0)
        self.steps[record.step] = StepEntry(numbers, payloads, record.proofs, num_steps=num_steps)

    def _commit(self, record: Committed) -> None:
        step = record.version.step
        if step != self.step + 1 or not self.has_pending_batch:
            raise LedgerError(f"step {step} was not consumed, so it cannot be committed")
        for number in self.steps[step].groups:
            self._end(number, self.groups[number].attempt, Stage.COMMITTED)
            self.totals.committed += 1
        self.step = step
        self._set_version(record)

    def _set_version(self, record: Committed | Replayed) -> None:
        before = self._entry(record.version.step)
        self.totals.nonfinite_steps += bool(record.nonfinite) - bool(before.nonfinite)
        self.steps[record.version.step] = replace(
            before, version=record.version, root=record.root, nonfinite=record.nonfinite
        )

    def _time(self, step: int, seconds: float) -> None:
        before = self._entry(step)
        self.totals.timed_groups += len(before.groups)
        self.totals.timed_seconds += seconds
        self.steps[step] = replace(before, seconds=seconds)

    def _entry(self, step: int) -> StepEntry:
        if step not in self.steps:
            raise LedgerError(f"step {step} is not known; the last is step {self.step}")
        return self.steps[step]

    def _keep_from(self, oldest: int, saved: int) -> None:
        self.checkpoints = [step for step in self.checkpoints if step >= oldest] + [saved]
        for step in [step for step in self.steps if step < self.oldest_step]:
            del self.steps[step]


def encode_state(state: LedgerState) -> dict[str, Any]:
    """As JSON holds it.

    Example: decode_state(json.loads(json.dumps(encode_state(state)))) == state
    """
    return {
        **asdict(state),
        "groups": [[number, *_row(entry)] for number, entry in sorted(state.groups.items())],
        "ended": {"below": state.ended.below, "others": sorted(state.ended.others)},
        "steps": [[step, asdict(entry)] for step, entry in sorted(state.steps.items())],
    }


def decode_state(tree: Mapping[str, Any]) -> LedgerState:
    """What `encode_state` wrote."""
    began = tree["began"]
    return LedgerState(
        groups={n: GroupEntry(attempt, Stage(s), p) for n, attempt, s, p in tree["groups"]},
        ended=Numbers(tree["ended"]["below"], set(tree["ended"]["others"])),
        next_number=tree["next_number"],
        steps={step: _decode_step(entry) for step, entry in tree["steps"]},
        step=tree["step"],
        began=began and Began(VersionId(**began["version"]), began["root"]),
        settings=dict(tree["settings"]),
        lineage=tree["lineage"],
        checkpoints=list(tree["checkpoints"]),
        totals=Totals(**tree["totals"]),
        num_faults=tree["num_faults"],
    )


def _row(entry: GroupEntry) -> tuple[int, str, str]:
    return entry.attempt, entry.stage.value, entry.payload


def _decode_step(tree: Mapping[str, Any]) -> StepEntry:
    version = tree["version"]
    return StepEntry(
        groups=tuple(tree["groups"]),
        payloads=tuple(tree["payloads"]),
        proofs=tuple(map(decode_proof, tree["proofs"])),
        version=version and VersionId(**version),
        root=tree["root"],
        nonfinite=tree["nonfinite"],
        seconds=tree["seconds"],
        num_steps=tree["num_steps"],
    )
