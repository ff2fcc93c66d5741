"""What the real controller did, read from its ledger as it grows."""

from __future__ import annotations

from pathlib import Path

from tests.faults.oracle import Judge
from trimaran.ledger.ledger import stream_of
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.ledger.records import (
    Began,
    Committed,
    Consumed,
    Issued,
    Opened,
    Record,
    Scored,
    Timed,
    decode,
)
from trimaran.store import entries
from trimaran.store.sqlite import SqliteStore
from trimaran.types import ScoredGroup
from trimaran.wire.messages import parse_scored_group

Attempt = tuple[int, int]
"""A group's number and attempt."""


class Audit:
    """Every group that it scored and every batch that it trained. `wrong` says what must not be."""

    def __init__(self, run_folder: Path, judge: Judge) -> None:
        self.store = SqliteStore(run_folder / "store.sqlite")
        self._payloads = FolderPayloads(run_folder / "payloads")
        self._run_id, self._judge = run_folder.name, judge
        self._sequence = 0
        self._scored: dict[Attempt, ScoredGroup] = {}
        self._attempts: dict[int, int] = {}
        self._batch: list[ScoredGroup] = []
        self.epoch = 0
        """Of the newest controller."""
        self.consumed = self.reported = 0
        """Steps: whose batch was chosen to train, and whose version was published and noted."""
        self.roots: dict[int, str] = {}
        """By step."""
        self.spoilt: set[Attempt] = set()
        """Groups with wrong tokens, which must be reissued."""
        self.num_trained = 0
        """Tokens."""
        self.wrong: list[str] = []

    async def read(self) -> None:
        async for sequence, tree in entries(self.store, stream_of(self._run_id), self._sequence):
            self._sequence = sequence
            await self._take(decode(tree))

    async def close(self) -> None:
        await self.store.close()

    @property
    def batch(self) -> list[ScoredGroup]:
        """The newest one that was chosen to train."""
        return self._batch

    @property
    def num_waiting(self) -> int:
        """Scored groups whose batch is not chosen yet."""
        return len(self._scored)

    @property
    def reissued(self) -> set[Attempt]:
        """Spoilt groups of which there is a later attempt."""
        return {(n, attempt) for n, attempt in self.spoilt if self._attempts[n] > attempt}

    async def ended_with(self) -> str:
        """The error of the controller that ended last; empty while none has."""
        record = await self.store.get(f"run/{self._run_id}")
        return record.value["error"] if record else ""

    async def _take(self, record: Record) -> None:
        match record:
            case Opened(epoch):
                self.epoch = epoch
            case Began(_, root):
                self.roots[0] = root
            case Issued(number, attempt):
                self._scored.pop((number, self._attempts.get(number, 0)), None)
                self._attempts[number] = attempt
            case Scored(number, attempt, payload):
                key = (number, attempt)
                scored = parse_scored_group(await self._payloads.read(payload))
                self._scored[key] = scored
                if not self._judge.is_right(scored.group):
                    self.spoilt.add(key)
            case Consumed():
                self._consume(record)
            case Committed(version, root):
                self.roots[version.step] = root
            case Timed(step):
                self.reported = step
            case _:
                pass

    def _consume(self, record: Consumed) -> None:
        self.consumed = record.step
        if bad := self.spoilt.intersection(record.groups):
            self.wrong.append(f"step {record.step} trains groups with wrong tokens: {bad}")
        self._batch = [self._scored.pop(key) for key in record.groups]
        good = {(proof.version, proof.replica) for proof in record.proofs if not proof.fault}
        makers = {maker for scored in self._batch for maker in scored.group.makers}
        if unproven := makers - good:
            self.wrong.append(f"step {record.step} trains tokens without a proof: {unproven}")
        groups = [scored.group for scored in self._batch]
        self.num_trained += sum(len(c.token_ids_T) for g in groups for c in g.completions_G)
