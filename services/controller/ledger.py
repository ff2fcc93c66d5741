"""Every group's life as append-only, hash-chained records; the one source from which a run resumes.

    issued ──▶ generated ──▶ scored ──▶ consumed ──▶ committed
       │           └────────────┴──▶ filtered
       └───────────────┴──▶ skipped          (an open attempt may be reissued as the next one)

Records are keyed (run, group, attempt), and each issued prompt ends in exactly one of committed,
filtered and skipped. A record's hash covers its content and the hash before it, so that an
altered, missing or foreign record is found and named.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from services.controller.payloads import PayloadStore, payload_digest
from trimaran.errors import OutOfOrderError, StaleEpochError, TrimaranError
from trimaran.store import Store
from trimaran.types import Proof, VersionId

Record = Mapping[str, Any]


class LedgerError(TrimaranError):
    """The ledger is damaged, or a record does not fit the life of its group."""


class Stage(StrEnum):
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
class Reissue:
    """Why a group is issued once more; stands in the record of that attempt."""

    cause: str
    replica: str = ""
    """Whose attempt failed; empty after a resume, when no replica is to blame."""


@dataclass(frozen=True, slots=True)
class GroupEntry:
    attempt: int
    stage: Stage
    payload: str = ""
    """Digest of the scored group; empty before."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StepEntry:
    groups: tuple[int, ...]
    version: VersionId | None = None
    """None until committed."""
    root: str = ""
    seconds: float = 0.0
    nonfinite: str = ""
    """Why optimizer updates of the step were left out; empty where all were made."""
    proofs: tuple[Proof, ...] = ()
    """Of the batch's tokens, as they stood when it was consumed."""


@dataclass(slots=True)
class LedgerState:
    """What the records say so far."""

    groups: dict[int, GroupEntry] = field(default_factory=dict)
    steps: list[StepEntry] = field(default_factory=list)
    """steps[i] is step i + 1; only the last may be uncommitted."""
    origin: tuple[VersionId, str] | None = None
    """The version before the first step, and its root."""
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
            return self.origin[1] if self.origin else ""
        return self.steps[step - 1].root

    def payloads_after(self, step: int) -> set[str]:
        """What a resume from a checkpoint of `step` may read."""
        groups = [number for entry in self.steps[step:] for number in entry.groups]
        groups += self.with_stage(Stage.SCORED)
        return {self.groups[number].payload for number in groups}

    def apply(self, record: Record) -> None:
        """Raises LedgerError when the record cannot follow what stands."""
        match record["kind"]:
            case "opened":
                pass
            case "origin":
                version = VersionId(record["lineage"], record["step"])
                self.origin, self.lineage = (version, record["root"]), record["lineage"]
            case "lineage":
                self.lineage = record["lineage"]
            case "replayed":
                self._set_version(record)
            case "timed":
                place = record["step"] - 1
                self.steps[place] = replace(self.steps[place], seconds=record["seconds"])
            case "checkpoint":
                self.checkpoints.append(record["step"])
            case Stage.ISSUED:
                self._issue(record)
            case Stage.CONSUMED:
                self._consume(record)
            case Stage.COMMITTED:
                self._commit(record)
            case kind:
                self._move(record["group"], record["attempt"], Stage(kind), record)

    def _issue(self, record: Record) -> None:
        number, attempt = record["group"], record["attempt"]
        before = self.groups.get(number)
        if before and (before.stage not in OPEN or attempt <= before.attempt):
            raise LedgerError(
                f"group {number}: attempt {attempt} cannot be issued after attempt"
                f" {before.attempt}, which is {before.stage}"
            )
        self.groups[number] = GroupEntry(attempt, Stage.ISSUED)

    def _move(self, number: int, attempt: int, stage: Stage, record: Record) -> None:
        before = self.groups.get(number)
        if not before or before.attempt != attempt or before.stage not in COMES_FROM[stage]:
            raise LedgerError(f"group {number}, attempt {attempt}: {stage} cannot follow {before}")
        self.groups[number] = replace(
            before,
            stage=stage,
            payload=record.get("payload", before.payload),
            reason=record.get("reason", ""),
        )

    def _consume(self, record: Record) -> None:
        if record["step"] != len(self.steps) + 1 or self.has_pending_batch:
            raise LedgerError(f"step {record['step']} cannot follow step {self.step}")
        for number, attempt in record["groups"]:
            self._move(number, attempt, Stage.CONSUMED, record)
        numbers = tuple(number for number, _ in record["groups"])
        proofs = tuple(proof_from_json(tree) for tree in record.get("proofs", ()))
        self.steps.append(StepEntry(numbers, proofs=proofs))

    def _commit(self, record: Record) -> None:
        if record["step"] != len(self.steps) or not self.has_pending_batch:
            raise LedgerError(f"step {record['step']} was not consumed, so it cannot be committed")
        for number in self.steps[-1].groups:
            self._move(number, self.groups[number].attempt, Stage.COMMITTED, record)
        self._set_version(record)

    def _set_version(self, record: Record) -> None:
        place = record["step"] - 1
        self.steps[place] = replace(
            self.steps[place],
            version=VersionId(record["lineage"], record["step"]),
            root=record["root"],
            nonfinite=record.get("nonfinite", ""),
        )


def proof_to_json(proof: Proof) -> dict[str, Any]:
    return asdict(proof)


def proof_from_json(tree: Mapping[str, Any]) -> Proof:
    return Proof(**{**tree, "version": VersionId(**tree["version"])})


def chain_hash(before: str, record: Record) -> str:
    content = {key: value for key, value in record.items() if key != "hash"}
    data = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{data}".encode()).hexdigest()


def first_hash(run_id: str) -> str:
    return hashlib.sha256(f"trimaran ledger of {run_id}".encode()).hexdigest()


def fold(run_id: str, rows: Iterable[tuple[int, Record]]) -> tuple[LedgerState, int, str]:
    """The state, the last sequence number and the last hash. Raises LedgerError where it breaks."""
    state, last, head = LedgerState(), 0, first_hash(run_id)
    for sequence, record in rows:
        if sequence != last + 1 or record.get("hash") != chain_hash(head, record):
            raise LedgerError(
                f"run {run_id}: the ledger's chain breaks at record {sequence}"
                f" ({record.get('kind')}): it does not follow record {last}; the store was altered"
                " or damaged, so the run cannot be resumed from it"
            )
        try:
            state.apply(record)
        except LedgerError as error:
            raise LedgerError(f"run {run_id}: ledger record {sequence}: {error}") from None
        last, head = sequence, record["hash"]
    return state, last, head


class RunLedger:
    """Records and payloads gather in memory; `flush` makes all of them durable at once."""

    def __init__(self, store: Store, payloads: PayloadStore, run_id: str) -> None:
        self._store, self._payloads, self._run_id = store, payloads, run_id
        self._stream = f"ledger/{run_id}"
        self.state, self._written, self._head = fold(run_id, store.read(self._stream))
        self._new_records: list[Record] = []
        self._new_payloads: dict[str, bytes] = {}
        self._flushing = asyncio.Lock()
        # One thread, so that what is handed over first is written first, cancelled or not.
        self._writer = ThreadPoolExecutor(1, "ledger")

    def record(self, kind: str, **content: Any) -> None:
        record = {"kind": str(kind), **content}
        self.state.apply(record)
        self._head = chain_hash(self._head, record)
        self._new_records.append({**record, "hash": self._head})

    def keep(self, data: bytes) -> str:
        """The digest under which a later record names the payload."""
        digest = payload_digest(data)
        self._new_payloads[digest] = data
        return digest

    def load(self, digest: str) -> bytes:
        return self._payloads.read(digest)

    async def flush(self) -> None:
        """Returns when everything recorded so far is on the disk, payloads before their records."""
        async with self._flushing:  # who waits here finds its records written with the others'
            records, self._new_records = self._new_records, []
            payloads, self._new_payloads = self._new_payloads, {}
            if records or payloads:
                await self._in_writer(self._write, records, payloads)

    async def prune_payloads(self, checkpoint: int) -> None:
        """Drop what no resume from `checkpoint` or later reads."""
        await self.flush()
        await self._in_writer(self._payloads.prune, self.state.payloads_after(checkpoint))

    def close(self) -> None:
        self._writer.shutdown(wait=True)

    async def _in_writer(self, function: Any, *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, function, *arguments)

    def _write(self, records: list[Record], payloads: dict[str, bytes]) -> None:
        self._payloads.write(payloads)
        try:
            self._store.extend(self._stream, records, after=self._written)
        except OutOfOrderError:
            raise StaleEpochError(
                f"run {self._run_id}: another controller writes to the ledger; stop this one"
            ) from None
        self._written += len(records)
