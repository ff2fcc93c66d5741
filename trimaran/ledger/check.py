"""Reads a whole ledger and says whether nothing is lost, altered or there twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from trimaran.errors import InputError
from trimaran.ledger.chain import Chain
from trimaran.ledger.ledger import read_trees
from trimaran.ledger.payloads.files import MissingPayloadError, Payloads
from trimaran.ledger.records import Committed, LedgerError
from trimaran.ledger.state import LedgerState
from trimaran.store import Store
from trimaran.types import LedgerEnd


@dataclass(slots=True)
class Findings:
    """What a check of a ledger found.

    Example:
        findings = await check_ledger(store, payloads, "demo", {"ledger-head.json": anchor})
        print("\\n".join(findings.lines()), bool(findings.faults))
    """

    state: LedgerState
    num_records: int = 0
    head: str = ""
    num_payloads: int = 0
    """Those that were read and have their digests."""
    num_anchors: int = 0
    faults: list[str] = field(default_factory=list[str])

    def lines(self) -> Iterator[str]:
        totals, state = self.state.totals, self.state
        yield f"records    {self.num_records}, the last has hash {self.head}"
        yield (
            f"groups     {self.num_issued} issued: {totals.committed} committed,"
            f" {totals.filtered} filtered, {totals.skipped} skipped, {len(state.groups)} open;"
            f" {totals.reissues} times one was issued again"
        )
        yield f"steps      {state.step} committed, lineage {state.lineage}"
        if totals.tainted_groups:
            yield (
                f"tainted    {totals.tainted_groups} groups had trained when a fault was found in the"
                " weights that made them; their records say which"
            )
        yield f"payloads   {self.num_payloads} were read and are unaltered"
        yield f"anchors    {self.num_anchors} agree"
        for fault in self.faults:
            yield f"FAULT      {fault}"

    def tree(self) -> dict[str, Any]:
        """For machines."""
        return {
            "records": self.num_records,
            "hash": self.head,
            "issued": self.num_issued,
            **asdict(self.state.totals),
            "open": len(self.state.groups),
            "steps": self.state.step,
            "lineage": self.state.lineage,
            "payloads": self.num_payloads,
            "anchors": self.num_anchors,
            "faults": self.faults,
        }

    @property
    def num_issued(self) -> int:
        return self.state.next_number - len(self.state.unissued)

    @property
    def num_ended(self) -> int:
        totals = self.state.totals
        return totals.committed + totals.filtered + totals.skipped


async def check_ledger(
    store: Store,
    payloads: Payloads,
    run_id: str,
    anchors: dict[str, LedgerEnd],
    every_payload: bool = False,
) -> Findings:
    """`anchors`: what was noted outside the store, by where it stands. `every_payload`: the run
    keeps all, so each that has trained is read; else those that a resume reads.

    A chain that breaks ends the check: what follows cannot be judged.
    """
    chain = Chain(run_id)
    found = Findings(chain.state)
    wanted = {anchor.records for anchor in anchors.values()}
    hashes: dict[int, str] = {}
    try:
        async for sequence, tree in read_trees(store, payloads, run_id):
            record = chain.follow(sequence, tree)
            if every_payload and isinstance(record, Committed):
                entry = chain.state.steps[record.version.step]
                missing = await _check_payloads(found, payloads, entry.payloads)
                found.faults += missing.values()
            if sequence in wanted:
                hashes[sequence] = tree["hash"]
    except (LedgerError, InputError) as error:
        found.faults.append(str(error))
        return _at_the_end_of(chain, found)
    _at_the_end_of(chain, found)
    _check_anchors(found, anchors, hashes)
    _check_ends(found)
    state = found.state
    if every_payload:
        waiting = (entry.payload for entry in state.groups.values() if entry.payload)
        found.faults += (await _check_payloads(found, payloads, waiting)).values()
    else:
        await _check_needed(found, chain, store, payloads)
    return found


async def _check_needed(found: Findings, chain: Chain, store: Store, payloads: Payloads) -> None:
    """What a resume reads. A run that goes on collects payloads, each after a record by which no
    resume needs it: so what is missing is a fault only if the records since then still need it."""
    names = sorted(chain.state.payloads_after(chain.state.oldest_step))
    missing = await _check_payloads(found, payloads, names)
    if not missing:
        return
    try:
        async for sequence, tree in read_trees(store, payloads, chain.run_id, chain.last):
            chain.follow(sequence, tree)
    except (LedgerError, InputError) as error:
        found.faults.append(str(error))
    _at_the_end_of(chain, found)
    needed = chain.state.payloads_after(chain.state.oldest_step)
    found.faults += [fault for name, fault in missing.items() if name in needed]


def _at_the_end_of(chain: Chain, found: Findings) -> Findings:
    found.state, found.num_records, found.head = chain.state, chain.last, chain.head
    return found


def _check_anchors(found: Findings, anchors: dict[str, LedgerEnd], hashes: dict[int, str]) -> None:
    for place, anchor in anchors.items():
        if anchor.records > found.num_records:
            found.faults.append(
                f"records {found.num_records + 1} to {anchor.records} are missing: {place} has seen"
                " them"
            )
        elif hashes[anchor.records] != anchor.hash:
            found.faults.append(f"record {anchor.records} is not the one that {place} has seen")
        else:
            found.num_anchors += 1


def _check_ends(found: Findings) -> None:
    """Each issued group has ended once, or is open."""
    if found.num_issued != found.num_ended + len(found.state.groups):
        found.faults.append(
            f"{found.num_issued} groups were issued, {found.num_ended} have ended and"
            f" {len(found.state.groups)} are open"
        )


async def _check_payloads(
    found: Findings, payloads: Payloads, names: Iterable[str]
) -> dict[str, str]:
    """Those that are missing, and what is to be said of it."""
    missing: dict[str, str] = {}
    for name in names:
        try:
            await payloads.read(name)
            found.num_payloads += 1
        except MissingPayloadError as error:
            missing[name] = str(error)
        except InputError as error:
            found.faults.append(str(error))
    return missing
