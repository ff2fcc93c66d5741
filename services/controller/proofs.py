"""Which tokens are proven to come from the weights that they name.

Weight sync keeps a proof for each version on each replica: the replica held these weights, block by
block. Tokens without a good proof must not train. Four places ask for proofs, each for a reason of its own:

1. `groups.GroupMaker`, when a group has been generated: so that nothing is scored in vain.
2. `loop.Loop._take_proven`, when a batch is due: a fault may have been found since. Each proof must now
   have the level that `run.proof` names; that of the live version may still reach it, and is waited for.
3. `trainer/exchange/provenance`, on rank 0: the trainer trusts no controller. It compares the proofs of
   a batch with the versions that it has made itself.
4. `resuming/tainted`, after each publication: a fault that is found once a group has trained is recorded
   with the group, because it cannot be undone.

The first two are here: `ProofCheck`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from trimaran.clients import WeightSyncClient
from trimaran.errors import DeadlineError, UnavailableError
from trimaran.ledger.records import Reissue
from trimaran.ledger.retries import RETRY_SECONDS, patiently
from trimaran.types import Group, Proof, ProofLevel, ScoredGroup, VersionId

SETTLE_SECONDS = 5.0
"""A replica may speak for a version a moment before its proof stands in the store."""
POLL_SECONDS = 0.2

Maker = tuple[VersionId, str]
Ask = Callable[[tuple[VersionId, ...]], Awaitable[dict[Maker, Proof]]]


@dataclass(frozen=True, slots=True)
class Unproven:
    """A version on a replica without a good proof, and why.

    Example: str(Unproven(VersionId(0, 7), "rollout-1", "block 5 differs"))
    """

    version: VersionId
    replica: str
    """As in the segments."""
    reason: str

    @property
    def name(self) -> str:
        """The replica's own, however often it was fixed."""
        return self.replica.partition("~")[0]

    @property
    def reissue(self) -> Reissue:
        return Reissue(f"unproven tokens of {self}", self.name)

    def __str__(self) -> str:
        return f"{self.replica} at version {self.version}: {self.reason}"


class ProofCheck:
    """Asks weight sync for the proofs of the tokens in a group or a batch.

    Example:
        prover = ProofCheck(weight_sync, patience=60.0)
        unproven = await prover.find_unproven(group)
        if unproven:
            print(unproven)  # "rollout-1 at version 0.3: block 7 differs"
    """

    def __init__(
        self,
        weight_sync: WeightSyncClient,
        patience: float,
        settle: float = SETTLE_SECONDS,
        poll: float = POLL_SECONDS,
        retry: float = RETRY_SECONDS,
        needed: ProofLevel = ProofLevel.DELIVERED,
        prove_timeout: float = 0.0,
    ) -> None:
        """`needed`: `run.proof`. The rest in seconds. `patience`: `outage_timeout`, for which a weight sync that is away is
        waited for; it is asked each `retry`. `settle`: for how long a missing proof is waited for;
        it is asked for each `poll`. `prove_timeout`: for how long a read-back of the live version is
        waited for."""
        self._weight_sync, self._patience = weight_sync, patience
        self._settle, self._poll, self._retry = settle, poll, retry
        self._needed, self._prove_timeout = needed, prove_timeout
        self._good: dict[Maker, Proof] = {}
        """Seen since the last batch was proven."""
        self._asking: dict[tuple[VersionId, ...], asyncio.Task[dict[Maker, Proof]]] = {}
        """Questions under way. The groups of a new version all ask at the same time: once is enough."""

    async def find_unproven(self, group: Group) -> Unproven | None:
        """The first version and replica with tokens in the group and no good proof; None for none."""
        makers = group.makers
        if makers <= self._good.keys():
            return None
        proofs = await self._fetch(makers, self._share)
        return _first_unproven(makers, proofs, ProofLevel.DELIVERED)

    async def prove(
        self,
        groups: Sequence[ScoredGroup],
        live: Callable[[], VersionId | None] = lambda: None,
    ) -> tuple[tuple[Proof, ...], dict[int, Unproven]]:
        """The proofs of the batch's tokens, one for each version and replica; and by number the
        groups that have tokens without a good proof. `live`: the version that is, by now; a proof of an
        older one stays as it is."""
        of_groups = {scored.group.number: scored.makers for scored in groups}
        makers = frozenset[Maker]().union(*of_groups.values())
        deadline = time.monotonic() + self._prove_timeout
        # What is live is looked at first: a version has its last level before the next one is live.
        before, proofs = live(), await self._fetch(makers, self._list)
        while self._may_rise(makers, proofs, before) and time.monotonic() < deadline:
            await asyncio.sleep(self._poll)
            before, proofs = live(), await self._fetch(makers, self._list)
        self._good = {maker: proof for maker, proof in proofs.items() if not proof.fault}
        found = {
            number: _first_unproven(its, proofs, self._needed) for number, its in of_groups.items()
        }
        unproven = {number: why for number, why in found.items() if why}
        return tuple(proofs[maker] for maker in sorted(makers & proofs.keys())), unproven

    def _may_rise(
        self, makers: Set[Maker], proofs: Mapping[Maker, Proof], live: VersionId | None
    ) -> bool:
        """Whether a proof is below the level that is needed, and its read-back may be under way. A replica
        may have a version before we hear that it is live."""
        if live is None:
            return False
        known = (proofs[maker] for maker in makers & proofs.keys() if maker[0] >= live)
        return any(not proof.fault and not proof.level.reaches(self._needed) for proof in known)

    async def _fetch(self, makers: Set[Maker], ask: Ask) -> dict[Maker, Proof]:
        """The proofs that exist, after `settle` seconds at most for those that are missing."""
        versions = tuple(sorted({version for version, _ in makers}))
        deadline = time.monotonic() + self._settle
        while True:
            proofs = await patiently(
                lambda: ask(versions), self._patience, "weight-sync", self._retry
            )
            if makers <= proofs.keys() or time.monotonic() > deadline:
                return proofs
            await asyncio.sleep(self._poll)

    async def _share(self, versions: tuple[VersionId, ...]) -> dict[Maker, Proof]:
        """As `_list`, with one question for all who ask at a time."""
        task = self._asking.get(versions)
        if task is None:
            task = self._asking[versions] = asyncio.create_task(self._note(versions))
            task.add_done_callback(lambda _: self._asking.pop(versions))
        return await asyncio.shield(task)

    async def _note(self, versions: tuple[VersionId, ...]) -> dict[Maker, Proof]:
        proofs = await self._list(versions)
        self._good |= {maker: proof for maker, proof in proofs.items() if not proof.fault}
        return proofs

    async def _list(self, versions: tuple[VersionId, ...]) -> dict[Maker, Proof]:
        try:
            listed = await self._weight_sync.list_proofs(versions)
        except DeadlineError as error:  # it is frozen: to us that is as good as away
            raise UnavailableError(str(error)) from None
        return {(proof.version, proof.replica): proof for proof in listed}


def _first_unproven(
    makers: Set[Maker], proofs: Mapping[Maker, Proof], needed: ProofLevel
) -> Unproven | None:
    for version, replica in sorted(makers):
        proof = proofs.get((version, replica))
        if proof is None:
            return Unproven(version, replica, "there is no proof that it held that version")
        if proof.fault:
            return Unproven(version, replica, proof.fault)
        if not proof.level.reaches(needed):
            reason = f"the proof's level is {proof.level}, and run.proof is {needed}"
            return Unproven(version, replica, reason)
    return None
