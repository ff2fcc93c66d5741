"""The replicas of a run: who is in the pool, who may make tokens, and how each is spoken to."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from services.weight_sync.control.ledger import VersionLedger
from services.weight_sync.control.members import Member
from services.weight_sync.control.tasks import cancel
from trimaran.errors import TrimaranError
from trimaran.types import (
    Caller,
    Manifest,
    Peer,
    PolicyVersion,
    Ranges,
    Replica,
    Routing,
    Source,
    Staged,
    TransferLimits,
    VersionId,
)

logger = logging.getLogger(__name__)


class Rollout(Protocol):
    """What is asked of a replica; `trimaran.clients.RolloutClient` is one."""

    async def stage_weights(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str,
        keep_live: bool,
    ) -> Staged: ...
    async def commit_weights(self, version: PolicyVersion, maker: str, timeout: float) -> float: ...
    async def sleep(self, timeout: float) -> None: ...
    async def abort_weights(self, version: VersionId, attempt: str) -> None: ...
    async def read_back(
        self, version: VersionId, blocks: Ranges, timeout: float
    ) -> tuple[str, ...]: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to stage a version."""

    caller: Caller
    """In whose epoch replicas are spoken to."""
    name: str
    """Stands in STAGE and ABORT, so that a late ABORT leaves the next try alone."""
    keeper: Member | None = None
    """Keeps its copy of the live version beside the new one, for whoever joins meanwhile."""


class ReplicaPool:
    """The members with their clients: who is routable, and COMMIT and ABORT on them.

    Example:

        async with pool.connected(members) as rollouts:
            await rollouts[members[0]].read_back(version, ((0, 694),), 60.0)
    """

    def __init__(
        self, ledger: VersionLedger, connect: Callable[[Replica, Caller], Rollout]
    ) -> None:
        self.members = ledger.members
        self._ledger = ledger
        self._connect = connect
        self._changed = asyncio.Event()
        self._aborts: set[asyncio.Task[None]] = set()

    def routable(self) -> tuple[Member, ...]:
        """Hold the live version, proven."""
        return tuple(member for member in self.members if self.is_routable(member))

    def is_routable(self, member: Member) -> bool:
        """Its tokens need a proof of their own: without one nobody would train on them."""
        proof = self._ledger.proofs.get(member.maker)
        is_proven = proof is not None and not proof.fault
        return is_proven and member.proven and member.holds(self._ledger.live)

    def routing(self) -> Routing:
        drained = frozenset(self.members.drained)
        routable = [member for member in self.routable() if member.name not in drained]
        names = {member.name for member in routable} | drained
        return Routing(
            self._ledger.live,
            tuple(member.replica for member in routable),
            {m.name: m.reason for m in self.members if m.name not in names},
            drained,
        )

    async def register(self, replica: Replica, peer: Peer) -> Member:
        member = self.members.register(replica, peer, time.monotonic())
        await self._note_change()
        return member

    async def drain(self, member: Member) -> None:
        """It leaves routing at once."""
        self.members.drained.add(member.name)
        await self._note_change()

    async def forget(self, member: Member) -> None:
        """Nobody stages or commits on it any more."""
        if self.members.find(member.name) is not None and self.members.is_current(member):
            self.members.forget(member)
            await self._note_change()

    def heartbeat(
        self, name: str, incarnation: int, claimed: PolicyVersion | None
    ) -> tuple[Member | None, bool]:
        """The member, None when unknown, and whether it holds something else than was believed."""
        return self.members.note_sign(name, incarnation, claimed, time.monotonic())

    async def exclude(self, failed: Mapping[Member, str]) -> None:
        """They leave routing."""
        for member, reason in failed.items():
            logger.warning("%s is not routable: %s", member.name, reason)
            self.members.mark_failed(member, reason)
        if failed:
            await self._note_change()

    async def correct(self, member: Member, held: PolicyVersion | None) -> None:
        """It holds something else than was believed, or more than was known."""
        self.members.mark_held(member, held)
        if member.held is None:
            await self._note_change()
        else:
            text = f"holds {held.version if held else 'nothing'} instead of {member.held.version}"
            await self.exclude({member: text})

    async def admit(self, member: Member) -> None:
        """All that it has loaded is right."""
        self.members.mark_proven(member)
        self.members.note_answer(member, time.monotonic())
        await self._note_change()

    async def condemn(self, member: Member, reason: str) -> None:
        """A block that it has loaded is wrong: it leaves routing, and only a load can mend it.

        Its tokens bear another maker's name from that load on.
        """
        self.members.mark_wrong(member)
        await self.exclude({member: reason})

    async def commit(
        self, live: PolicyVersion, members: Sequence[Member], timeout: float
    ) -> list[float]:
        """Takes the staged version live on each; returns the pauses, in seconds, of those that followed."""
        async with self.connected(members) as rollouts:
            # In the newest epoch: the commit record decided, whoever conducts the run by now.
            answers = await asyncio.gather(
                *(self._commit(live, m, rollouts[m], timeout) for m in members)
            )
        await self._note_change()
        return [pause for pause in answers if pause is not None]

    async def _commit(
        self, live: PolicyVersion, member: Member, rollout: Rollout, timeout: float
    ) -> float | None:
        """A proven member is routable from its own answer on, whatever the others do."""
        member = self.members.newest(member)
        try:
            pause = await rollout.commit_weights(live, member.maker, timeout)
        except TrimaranError as error:
            self.members.mark_held(member, None)
            await self.exclude({member: f"commit {live.version}: {error}"})
            return None
        self.members.mark_loaded(member, live)
        self._changed.set()
        return pause

    async def sleep(self, members: Sequence[Member], timeout: float) -> None:
        """Each leaves its devices to the trainer. One that does not leaves routing, and is ended where it
        has not ended yet: the trainer waits for its devices."""
        async with self.connected(members) as rollouts:
            answers = await asyncio.gather(
                *(rollouts[member].sleep(timeout) for member in members), return_exceptions=True
            )
        failed: dict[Member, str] = {}
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, TrimaranError):
                failed[member] = f"does not sleep: {answer}"
            elif answer is not None:
                raise answer
        await self.exclude(failed)
        if failed:
            await self._ledger.tell_overdue({m.name: why for m, why in failed.items()})

    def abort(self, members: Sequence[Member], version: VersionId, attempt: Attempt) -> None:
        """Told, not waited for: a replica that is gone must not hold up the others."""
        for member in members:
            task = asyncio.create_task(self._abort(member, version, attempt))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _abort(self, member: Member, version: VersionId, attempt: Attempt) -> None:
        try:
            async with self.connected([member], attempt.caller) as rollouts:
                await rollouts[member].abort_weights(version, attempt.name)
        except TrimaranError as error:
            logger.info("%s could not be told to abort %s: %s", member.name, version, error)

    def attempt(self, caller: Caller, members: Sequence[Member]) -> Attempt:
        """A new one, for all that hold the live version. Its keeper is the first by name, whom
        `plan.ask_order` asks too."""
        keeper = next((member for member in members if self.is_routable(member)), None)
        return Attempt(caller, secrets.token_hex(8), keeper)

    @asynccontextmanager
    async def connected(
        self, members: Sequence[Member], caller: Caller | None = None
    ) -> AsyncIterator[dict[Member, Rollout]]:
        """A client each, that speaks for `caller`; by default in the newest epoch.

        Fresh ones, so that no connection to a former incarnation is left.
        """
        caller = caller or self._ledger.caller
        async with AsyncExitStack() as stack:
            rollouts: dict[Member, Rollout] = {}
            for member in members:
                rollout = rollouts[member] = self._connect(member.replica, caller)
                stack.push_async_callback(rollout.close)
            yield rollouts

    async def wait_for_change(self, timeout: float) -> None:
        """Returns after a registration, a commit, a proof or a fault, or after `timeout` seconds."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):  # wait_for may swallow a cancellation
                await self._changed.wait()

    async def close(self) -> None:
        await cancel(list(self._aborts))

    async def _note_change(self) -> None:
        self._changed.set()
        await self._ledger.save_members()
