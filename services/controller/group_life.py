"""The life of one group, from a run's ledger, while the run goes on and after it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import Any

from services.controller.ledger import read_trees
from services.controller.payloads import MissingPayloadError, PayloadStore
from services.controller.records import (
    Committed,
    Consumed,
    Generated,
    GroupRecord,
    Record,
    Replayed,
    Scored,
    Tree,
    decode,
    encode,
)
from trimaran.errors import InputError
from trimaran.store import Store
from trimaran.types import Faulted, Proof, Verdict
from trimaran.wire import parse_scored_group


@dataclass(slots=True)
class GroupLife:
    """Everything that is recorded of one group.

    Example:
        life = await read_life(store, payloads, "demo", 17)
        print("\\n".join(tell(life)))
    """

    group: int
    records: list[GroupRecord] = field(default_factory=list)
    consumed: Consumed | None = None
    versions: list[Committed | Replayed] = field(default_factory=list)
    """What its step led to; more than one after a resume that opened a new lineage."""
    verdicts_G: tuple[Verdict, ...] = ()
    """Of the last scored attempt; empty where its payload is not kept any more."""

    def add(self, record: Record) -> None:
        """Takes note of the record where it has to do with the group."""
        if isinstance(record, GroupRecord):
            if record.group == self.group:
                self.records.append(record)
        elif isinstance(record, Consumed):
            if self.group in dict(record.groups):
                self.consumed = record
        elif isinstance(record, Committed | Replayed) and record.version.step == self.step:
            self.versions.append(record)

    @property
    def step(self) -> int | None:
        """In which it trained; None before it was chosen."""
        return self.consumed.step if self.consumed else None

    @property
    def proofs(self) -> tuple[Proof, ...]:
        """Of the replicas and versions that made the attempt that trained."""
        if not self.consumed:
            return ()
        attempt = dict(self.consumed.groups)[self.group]
        made = [r for r in self.records if isinstance(r, Generated) and r.attempt == attempt]
        makers = {maker for record in made for maker in record.makers}
        return tuple(p for p in self.consumed.proofs if (p.replica, str(p.version)) in makers)

    def tree(self) -> dict[str, Any]:
        """For machines."""
        return {
            "group": self.group,
            "records": [encode(record) for record in self.records],
            "step": self.step,
            "proofs": [encode_proof(proof) for proof in self.proofs],
            "versions": [encode(record) for record in self.versions],
            "completions": [_tree_of(verdict) for verdict in self.verdicts_G],
        }


def encode_proof(proof: Proof) -> dict[str, Any]:
    return {
        "version": str(proof.version),
        "replica": proof.replica,
        "root": proof.root,
        "num_blocks": proof.num_blocks,
        "num_loaded": proof.num_loaded,
        "fault": proof.fault,
    }


async def read_life(store: Store, payloads: PayloadStore, run_id: str, group: int) -> GroupLife:
    """Reads the whole ledger, a page at a time. Raises InputError when it knows no such group."""
    life = await _follow(group, read_trees(store, payloads, run_id))
    if not life.records:
        raise InputError(f"run {run_id}: its ledger knows no group {group}")
    scored = [record for record in life.records if isinstance(record, Scored)]
    if scored:
        with contextlib.suppress(MissingPayloadError):
            data = await payloads.read(scored[-1].payload)
            life.verdicts_G = parse_scored_group(data).verdicts_G
    return life


async def _follow(group: int, trees: AsyncIterable[tuple[int, Tree]]) -> GroupLife:
    life = GroupLife(group)
    async for _, tree in trees:
        if _may_matter(tree, group):
            life.add(decode(tree))
    return life


def _may_matter(tree: Tree, group: int) -> bool:
    """Most records are of other groups; these are not even decoded."""
    return tree.get("group", group) == group and tree["kind"] != "compacted"


def _tree_of(verdict: Verdict) -> dict[str, Any]:
    if isinstance(verdict, Faulted):
        return {"reward": None, "terms": dict(verdict.terms), "fault": verdict.fault}
    return {
        "reward": verdict.reward,
        "terms": dict(verdict.terms),
        "indigestible": verdict.indigestible,
    }
