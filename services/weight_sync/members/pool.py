"""The replicas of a run: who is in the pool, who may make tokens, and how each is spoken to."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from services.weight_sync.ledger import VersionLedger
from services.weight_sync.members.member import Member, StagedCopy
from services.weight_sync.members.members import Happened
from services.weight_sync.tasks import cancel
from trimaran.clients import RolloutClient
from trimaran.errors import TrimaranError
from trimaran.types import (
    Caller,
    Peer,
    PolicyVersion,
    Replica,
    Routing,
    VersionId,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to stage a version."""

    caller: Caller
    """In whose epoch replicas are spoken to."""
    name: str
    """Stands in STAGE and ABORT, so that a late ABORT leaves the next try alone."""
    keeper: Member | None = None
    """Keeps its copy of the live version beside the new one, for replicas that join meanwhile."""


class ReplicaPool:
    """The members with their clients: who is routable, and COMMIT and ABORT on them.

    Example:

        async with pool.connected(members) as rollouts:
            await rollouts[members[0]].read_back(version, ((0, 694),), 60.0)
    """

    def __init__(
        self, ledger: VersionLedger, connect: Callable[[Replica, Caller], RolloutClient]
    ) -> None:
        self.members = ledger.members
        self._ledger = ledger
        self._connect = connect
        self._changed = asyncio.Event()
        self._aborts: set[asyncio.Task[None]] = set()

    def routable(self) -> tuple[Member, ...]:
        """Hold the live version, proven."""
        return tuple(member for member in self.members if self.is_routable(member))

    def holders(self) -> tuple[Member, ...]:
        """Those that can also give it to others."""
        return tuple(member for member in self.routable() if member.has_copy)

    def is_routable(self, member: Member) -> bool:
        """Its tokens need a proof of their own: without one the trainer would refuse them."""
        proof = self._ledger.proofs.get(member.maker)
        is_proven = proof is not None and not proof.fault
        return is_proven and member.is_proven_at(self._ledger.live)

    def routing(self) -> Routing:
        drained = self.members.drained
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

    async def heartbeat(self, name: str, incarnation: int, held: PolicyVersion | None) -> bool:
        """False when it is unknown, and has to register."""
        member, now = self.members.find(name), time.monotonic()
        if member is None or member.incarnation != incarnation:
            return False
        await self.tell(member, lambda m: m.hear(held, now))
        return True

    async def tell(self, member: Member, happened: Happened) -> None:
        """As `Members.tell`; on record when it returns."""
        if self._tell(member, happened):
            await self._note_change()

    def _tell(self, member: Member, happened: Happened) -> bool:
        before = self.members.newest(member)
        changed = self.members.tell(member, happened)
        after = self.members.newest(member)
        if after.failures > before.failures:
            logger.warning("%s is not routable: %s", after.name, after.reason)
        return changed

    async def exclude(self, failed: Mapping[Member, str]) -> None:
        """They have a fault, and leave routing."""
        now = time.monotonic()
        for member, reason in failed.items():
            self._tell(member, partial(Member.fail, reason=reason, now=now))
        if failed:
            await self._note_change()

    async def admit(self, member: Member, live: PolicyVersion, num_blocks: int) -> None:
        """Its proof of `live` is on record: it is routable once all of its blocks were right."""
        now = time.monotonic()
        await self.tell(member, lambda m: m.prove(live, num_blocks, now))
        self._changed.set()  # one that was proven before has its proof now

    async def condemn(self, member: Member, reason: str, maker: str) -> None:
        """A block that it has loaded as `maker` is wrong: it leaves routing."""
        now = time.monotonic()
        await self.tell(member, lambda m: m.condemn(reason, maker, now))

    async def commit(
        self, live: PolicyVersion, copies: Mapping[Member, str], timeout: float
    ) -> list[float]:
        """Takes the staged version live on each; returns the pauses, in seconds, of those that followed.
        `copies`: where it lies there (`StagedCopy.path`)."""
        async with self.connected(list(copies)) as rollouts:
            # In the newest epoch: the commit record decided, whichever controller conducts the run by now.
            answers = await asyncio.gather(
                *(self._commit(live, m, path, rollouts[m], timeout) for m, path in copies.items())
            )
        await self._note_change()
        return [pause for pause in answers if pause is not None]

    async def _commit(
        self, live: PolicyVersion, member: Member, path: str, rollout: RolloutClient, timeout: float
    ) -> float | None:
        """A proven member is routable from its own answer on, whatever the others do."""
        member, copy = self.members.newest(member), StagedCopy(live.root, path)
        try:
            pause = await rollout.commit_weights(live, member.maker, timeout)
        except TrimaranError as error:
            self.members.tell(member, lambda m: m.doubt(copy))
            await self.exclude({member: f"commit {live.version}: {error}"})
            return None
        self.members.tell(member, lambda m: m.load(live, member.maker, copy))
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
        """Sent, not waited for: a replica that is gone must not hold up the others."""
        for member in members:
            task = asyncio.create_task(self._abort(member, version, attempt))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _abort(self, member: Member, version: VersionId, attempt: Attempt) -> None:
        try:
            async with self.connected([member], attempt.caller) as rollouts:
                await rollouts[member].abort_weights(version, attempt.name)
        except TrimaranError as error:
            logger.info("%s could not be asked to abort %s: %s", member.name, version, error)

    def attempt(self, caller: Caller, members: Sequence[Member]) -> Attempt:
        """A new one, for all that hold the live version. Its keeper is the first by name that has a
        copy, whom `plan.ask_order` asks too."""
        holders = (m for m in members if m.has_copy and self.is_routable(m))
        keeper = next(holders, None)
        return Attempt(caller, secrets.token_hex(8), keeper)

    @asynccontextmanager
    async def connected(
        self, members: Sequence[Member], caller: Caller | None = None
    ) -> AsyncIterator[dict[Member, RolloutClient]]:
        """A client each, that speaks for `caller`; by default in the newest epoch.

        Fresh ones, so that no connection to a former incarnation is left.
        """
        caller = caller or self._ledger.caller
        async with AsyncExitStack() as stack:
            rollouts: dict[Member, RolloutClient] = {}
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
