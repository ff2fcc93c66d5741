"""What has trained from weights in which a fault was found later.

A read-back may find a wrong block long after tokens of it have trained. Weight sync then gives the fault
to every version since that block was last right, and lists these proofs. Here the ledger is read for the
groups whose tokens were made under them, and for the steps in which these trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing

from trimaran.ledger.ledger import RunLedger, read_trees
from trimaran.ledger.records import Consumed, Generated, Record, Scored, Tainted, decode
from trimaran.ledger.search import find_start
from trimaran.types import Proof

KINDS = ("generated", "scored", "consumed")


async def find_tainted(
    ledger: RunLedger, faults: Sequence[Proof], num_faults: int
) -> list[Tainted]:
    """One record for each replica of whose tokens some have trained. `faults`: new ones; `num_faults`:
    all that are known with them.

    Reads the ledger, as far as it is flushed, from the oldest of the versions on.
    """
    store, payloads, run_id = ledger.source
    oldest = min(proof.version.step for proof in faults)
    start = await find_start(store, payloads, run_id, lambda state: state["step"] <= oldest)

    async def records() -> AsyncIterator[Record]:
        async with aclosing(read_trees(store, payloads, run_id, start.after)) as trees:
            async for _, tree in trees:
                if tree["kind"] in KINDS:
                    yield decode(tree)

    return await match(records(), faults, num_faults)


async def match(
    records: AsyncIterator[Record], faults: Iterable[Proof], num_faults: int
) -> list[Tainted]:
    """As `find_tainted`, of these records."""
    bad = {(proof.replica, str(proof.version)): proof for proof in faults}
    made: defaultdict[tuple[int, int], set[tuple[str, str]]] = defaultdict(set)
    trained: defaultdict[str, list[tuple[int, tuple[int, int]]]] = defaultdict(list)
    async for record in records:
        if isinstance(record, Generated | Scored):
            made[record.group, record.attempt] |= bad.keys() & set(record.makers)
        elif isinstance(record, Consumed):
            for group in record.groups:
                for replica in {replica for replica, _ in made.pop(group, ())}:
                    trained[replica].append((record.step, group))
    found: list[Tainted] = []
    for replica, places in sorted(trained.items()):
        of_it = [proof for (name, _), proof in bad.items() if name == replica]
        newest = max(of_it, key=lambda proof: proof.version)
        versions = tuple(str(version) for version in sorted(proof.version for proof in of_it))
        steps = tuple(sorted({step for step, _ in places}))
        groups = tuple(group for _, group in places)
        found.append(Tainted(replica, versions, newest.fault, steps, groups, num_faults))
    return found
