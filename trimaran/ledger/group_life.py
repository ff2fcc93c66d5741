"""The life of one group, from a run's ledger, while the run goes on and after it."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field
from typing import Any

from trimaran.errors import InputError
from trimaran.ledger.ledger import read_trees
from trimaran.ledger.payloads.files import MissingPayloadError, Payloads
from trimaran.ledger.records import (
    Checkpointed,
    Committed,
    Consumed,
    Filtered,
    Generated,
    GroupRecord,
    Record,
    Replayed,
    Scored,
    Skipped,
    Tainted,
    Tree,
    decode,
    encode,
)
from trimaran.ledger.scores import by_completion
from trimaran.ledger.search import find_start
from trimaran.run.answers import RunEpisode
from trimaran.store import Store
from trimaran.types import Faulted, Proof, ScoredGroup, Verdict
from trimaran.wire.messages import decode_scored_group
from trimaran.wire.run_messages import episode_to_tree


@dataclass(slots=True)
class GroupLife:
    """Everything that is recorded of one group.

    Example:
        life = await read_life(store, payloads, "demo", 17)
        print("\\n".join(tell(life)))
    """

    group: int
    records: list[GroupRecord] = field(default_factory=list[GroupRecord])
    consumed: Consumed | None = None
    versions: list[Committed | Replayed] = field(default_factory=list[Committed | Replayed])
    """What its step led to; more than one after a resume that opened a new lineage."""
    tainted: list[Tainted] = field(default_factory=list[Tainted])
    """Faults that were found after it had trained, in the weights that made it."""
    whole: ScoredGroup | None = None
    """Its last scored attempt with all tokens; None where its payload is not kept any more."""

    def add(self, record: Record) -> None:
        """Takes note of the record where it has to do with the group."""
        if isinstance(record, GroupRecord):
            if record.group == self.group:
                self.records.append(record)
        elif isinstance(record, Consumed):
            if self.group in dict(record.groups):
                self.consumed = record
        elif isinstance(record, Tainted):
            if self.group in dict(record.groups):
                self.tainted.append(record)
        elif isinstance(record, Committed | Replayed) and record.version.step == self.step:
            self.versions.append(record)

    def is_over(self, last: Record) -> bool:
        """Whether of all records behind `last` only a `Tainted` one can be of the group."""
        if self.records and isinstance(self.records[-1], Filtered | Skipped):
            return True
        # No resume begins before the oldest checkpoint, so none replays this step.
        return self.step is not None and isinstance(last, Checkpointed) and last.oldest >= self.step

    @property
    def step(self) -> int | None:
        """In which it trained; None before it was chosen."""
        return self.consumed.step if self.consumed else None

    @property
    def scored(self) -> Scored | Filtered | None:
        """The last record with its rewards, where it has any."""
        rows = (r for r in reversed(self.records) if isinstance(r, Scored | Filtered))
        return next((r for r in rows if isinstance(r, Scored) or r.rewards), None)

    @property
    def verdicts_G(self) -> tuple[Verdict, ...]:
        """Verdicts of the last scored attempt; empty where its payload is not kept any more."""
        return self.whole.verdicts_G if self.whole else ()

    @property
    def episodes_G(self) -> tuple[RunEpisode | None, ...]:
        """Its episodes, likewise; None for an answer of one turn."""
        return tuple(map(RunEpisode.of, self.whole.group.completions_G)) if self.whole else ()

    def _judged(self) -> list[dict[str, Any]]:
        return [
            {**_tree_of(verdict), **({"episode": episode_to_tree(episode)} if episode else {})}
            for verdict, episode in zip(self.verdicts_G, self.episodes_G, strict=True)
        ]

    def _recorded(self) -> list[dict[str, Any]]:
        rows = by_completion(self.scored) if self.scored else []
        return [{"reward": reward, "terms": dict(terms)} for reward, terms in rows]

    @property
    def proofs(self) -> tuple[Proof, ...]:
        """Proofs of the replicas and versions that made the attempt that trained."""
        if not self.consumed:
            return ()
        attempt = dict(self.consumed.groups)[self.group]
        made = [
            r for r in self.records if isinstance(r, Generated | Scored) and r.attempt == attempt
        ]
        makers = {maker for record in made for maker in record.makers}
        return tuple(p for p in self.consumed.proofs if (p.replica, str(p.version)) in makers)

    def tree(self) -> dict[str, Any]:
        """For machines."""
        return {
            "group": self.group,
            "records": [encode(record) for record in self.records],
            "step": self.step,
            "proofs": [asdict(one) | {"version": str(one.version)} for one in self.proofs],
            "versions": [encode(record) for record in self.versions],
            "tainted": [encode(record) for record in self.tainted],
            "completions": self._judged() or self._recorded(),
        }


async def read_life(store: Store, payloads: Payloads, run_id: str, group: int) -> GroupLife:
    """With its tokens and verdicts, while their payload is kept. Raises InputError when there is no such group."""
    life = await find_records(store, payloads, run_id, group)
    if not life.records:
        raise InputError(f"run {run_id}: its ledger knows no group {group}")
    if isinstance(life.scored, Scored):
        with contextlib.suppress(MissingPayloadError):
            life.whole = decode_scored_group(await payloads.read(life.scored.payload))
    return life


async def find_records(store: Store, payloads: Payloads, run_id: str, group: int) -> GroupLife:
    """Reads of the ledger what may be of the group, a page at a time: from the last archived place at
    which it was not issued yet up to the checkpoint behind which its step is not trained again, and of
    what follows only whether a fault was found later."""
    life = GroupLife(group)
    start = await find_start(store, payloads, run_id, lambda state: state["next_number"] <= group)
    is_over = False
    async with contextlib.aclosing(read_trees(store, payloads, run_id, start.after)) as trees:
        async for _, tree in trees:
            if tree["kind"] == "tainted" or (not is_over and _may_matter(tree, group)):
                record = decode(tree)
                life.add(record)
                is_over = is_over or life.is_over(record)
                if is_over and life.step is None:  # it never trained
                    break
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
