"""The ledger's chain: each record's hash covers its content and the hash before it.

So an altered, missing, swapped or foreign record is found and named. A chain may begin with a
`Compacted` record, which holds the sum of those before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable
from dataclasses import dataclass, field

from trimaran.ledger.payloads.archive import ArchiveSegment
from trimaran.ledger.records import (
    Checkpointed,
    Compacted,
    LedgerError,
    Record,
    Tree,
    canonical,
    chain_hash,
    decode,
)
from trimaran.ledger.state import LedgerState, decode_state


def first_hash(run_id: str) -> str:
    return hashlib.sha256(f"trimaran ledger of {run_id}".encode()).hexdigest()


@dataclass(slots=True)
class Chain:
    """Where a reader of the ledger stands.

    Example:
        chain = Chain("demo")
        chain.follow(1, tree)  # raises LedgerError unless it is the first record of run demo
        (chain.last, chain.state.step)
    """

    run_id: str
    last: int = 0
    """Sequence number of the last record."""
    head: str = ""
    """Its hash."""
    state: LedgerState = field(default_factory=LedgerState)
    segment: ArchiveSegment = field(default_factory=ArchiveSegment)
    """The records since the last `Compacted`, that one included."""
    compacted: list[int] = field(default_factory=list[int])
    """Sequence numbers of the `Compacted` records that have been followed."""
    saved: dict[int, int] = field(default_factory=dict[int, int])
    """Step of each kept checkpoint -> sequence number of its record, where that was followed."""

    def __post_init__(self) -> None:
        self.head = self.head or first_hash(self.run_id)

    def follow(self, sequence: int, tree: Tree) -> Record:
        """The record. Raises LedgerError where it does not follow."""
        if self.last == 0 and sequence > 1 and tree.get("kind") == "compacted":
            self.last, self.head = sequence - 1, tree.get("before", "")
        content = canonical(tree)
        if sequence != self.last + 1 or tree.get("hash") != chain_hash(self.head, content):
            raise LedgerError(
                f"run {self.run_id}: the ledger's chain breaks at record {sequence}"
                f" ({tree.get('kind')}): it does not follow record {self.last}; the store was altered"
                " or damaged, so the run cannot be resumed from it"
            )
        try:
            record = decode(tree)
            if isinstance(record, Compacted):
                self._take_up(decode_state(record.state))
            self.state.apply(record)
        except LedgerError as error:
            raise LedgerError(f"run {self.run_id}: ledger record {sequence}: {error}") from None
        self.add(sequence, tree, content, record)
        return record

    def _take_up(self, state: LedgerState) -> None:
        if self.segment and state != self.state:
            raise LedgerError("it does not say what the records before it add up to")
        self.state = state

    def add(self, sequence: int, tree: Tree, content: str, record: Record) -> None:
        """A record that follows, and that the state has taken in. `content`: its canonical text."""
        self.last, self.head = sequence, tree["hash"]
        if isinstance(record, Compacted):
            self.compacted.append(sequence)
            self.segment = ArchiveSegment(sequence)
        elif isinstance(record, Checkpointed):
            kept = set(self.state.checkpoints)
            self.saved = {s: at for s, at in self.saved.items() if s in kept}
            self.saved[record.step] = sequence
        self.segment.add(content, tree["hash"])

    @property
    def needless(self) -> int:
        """All records up to this number are archived, and older than the oldest kept checkpoint."""
        kept_from = self.saved.get(self.state.oldest_step, 0)
        return max((at - 1 for at in self.compacted if at <= kept_from), default=0)


async def fold(run_id: str, rows: AsyncIterable[tuple[int, Tree]]) -> Chain:
    """The chain after all records. Raises LedgerError where it breaks."""
    chain = Chain(run_id)
    async for sequence, tree in rows:
        chain.follow(sequence, tree)
    return chain
