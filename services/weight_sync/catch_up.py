"""Brings replicas that are behind to the live version, each by a task of its own.

    holds an older one ─▶ COMMIT of what it may have staged
    else               ─▶ STAGE by relay from those that hold it ─▶ COMMIT
    then               ─▶ what is left of a full read-back ─▶ routable

The trainer's transfer group has no part in it, and the trainer need not be
there as long as one replica holds the version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from services.weight_sync.members.member import Member, State
from services.weight_sync.members.offers import SendTarget, ask_senders
from services.weight_sync.members.pool import Attempt
from services.weight_sync.parts import Parts
from services.weight_sync.pauses import Pauses
from services.weight_sync.staging.sharing import Lender, find_lenders, host_of, plan_shared
from services.weight_sync.staging.transfer_plan import plan_catch_up
from services.weight_sync.tasks import cancel, log_failure
from trimaran.errors import TrimaranError
from trimaran.types import PolicyVersion

logger = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""For the trainer to say whether it still has the version; it is not needed."""


class CatchUp:
    """One try with one replica."""

    def __init__(self, parts: Parts) -> None:
        self._config = parts.config
        self._ledger = parts.ledger
        self._pool = parts.pool
        self._stager = parts.stager
        self._prover = parts.prover
        self._connect_senders = parts.connect_senders
        self._turns = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """By host."""

    async def bring_up(self, member: Member) -> None:
        """Afterwards the member is routable, has a fault, or could not be served yet."""
        live, manifest = self._ledger.live, self._ledger.manifest
        assert live is not None and manifest is not None, "nothing to catch up with"
        if not member.holds(live) and not await self._load(member, SendTarget(live, manifest)):
            return
        try:
            proof = await self._prover.prove_joiner(member, live, manifest)
        except TrimaranError as error:
            self._pool.members.tell(member, Member.doubt)
            await self._pool.exclude({member: f"read-back of {live.version}: {error}"})
        else:
            if not proof.fault:
                logger.info("%s holds version %s, proven", member.name, live.version)

    async def _load(self, member: Member, target: SendTarget) -> bool:
        """True once it has loaded the version."""
        live = target.version
        if member.held is not None and await self._commit_staged(member, live):
            return True
        async with AsyncExitStack() as stack:
            # One of a host after another: the first takes a copy, which the others can then read.
            host = host_of(member, self._config.transport) or member.name
            await stack.enter_async_context(self._turns[host])
            if self._find_lenders(member, live):
                await stack.aclose()
            attempt = self._pool.attempt(self._ledger.caller, ())
            try:
                copies = await self._stage(member, target, attempt)
            except BaseException:
                self._pool.abort([member], live.version, attempt)
                raise
            return bool(await self._pool.commit(live, copies, self._config.commit_timeout))

    async def _commit_staged(self, member: Member, live: PolicyVersion) -> bool:
        """A version may have become live while weight sync was away: roll forward."""
        try:
            async with self._pool.connected([member]) as rollouts:
                await rollouts[member].commit_weights(
                    live, member.maker, self._config.commit_timeout
                )
        except TrimaranError as error:
            logger.debug("%s has nothing staged: %s", member.name, error)
            return False
        self._pool.members.tell(member, lambda m: m.load(live, member.maker))
        return True

    async def _stage(
        self, member: Member, target: SendTarget, attempt: Attempt
    ) -> Mapping[Member, str]:
        """`Outcome.copies`."""
        live = target.version
        holders = self._pool.holders()
        behind = [m for m in self._pool.members if not m.is_proven_at(live)]
        pullers = [m for m in behind if m.state is not State.FAILED or m.name == member.name]
        async with AsyncExitStack() as stack:
            target = await self._with_offers(stack, target)
            lenders = self._find_lenders(member, live)
            if not holders and not target.offers and not lenders:
                logger.debug("%s waits: no process can give %s", member.name, live.version)
                return {}
            transport, fan_out = self._config.transport, self._config.relay_fan_out
            given = target.manifest, target.offers
            if lenders:
                plan = plan_shared(*given, [member], lenders, holders)
            else:
                plan = plan_catch_up(*given, member, pullers, holders, transport, fan_out)
            connected = self._pool.connected([member], attempt.caller)
            rollouts = await stack.enter_async_context(connected)
            rollout = rollouts[member]
            outcome = await self._stager.stage_alone(target, attempt, plan, member, rollout)
        self._pool.abort(list(outcome.failed), live.version, attempt)
        await self._pool.exclude(outcome.failed)
        return outcome.copies

    def _find_lenders(self, member: Member, live: PolicyVersion) -> dict[str, Lender]:
        """On its host; one without a fault comes before the others."""
        here = [m for m in self._pool.members if m.peer.host == member.peer.host]
        copies = {m: m.lends(live) for m in sorted(here, key=lambda m: -m.failures)}
        return find_lenders(copies, self._config.transport)

    async def _with_offers(self, stack: AsyncExitStack, target: SendTarget) -> SendTarget:
        timeout = min(ASK_SECONDS, self._config.join_timeout)
        caller = self._ledger.caller
        asked = ask_senders(self._connect_senders, caller, target.version, timeout)
        try:
            return await stack.enter_async_context(asked)
        except TrimaranError as error:
            # It holds a newer version, is replacing its weights, or is gone.
            logger.debug("the trainer cannot give %s: %s", target.version.version, error)
            return target


class CatchUps:
    """The tasks, and when a replica with a fault is tried again."""

    def __init__(self, parts: Parts, pauses: Pauses) -> None:
        self._catch_up = CatchUp(parts)
        self._ledger = parts.ledger
        self._pool = parts.pool
        self._pauses = pauses
        self._tasks: dict[str, tuple[Member, asyncio.Task[None]]] = {}
        self._targets: dict[str, PolicyVersion | None] = {}
        """What each is being brought up to."""
        self._held_off: set[str] = set()
        self._rests = False

    def start(self) -> None:
        """For everyone that is behind.

        What is under way goes on, unless it is a former incarnation's or leads to a version that
        has been replaced: those who had that one have begun to write over it. Where that happens
        again and again, the replica takes part in a publication instead.
        """
        live = self._ledger.live
        if live is None or self._rests:
            return
        for member in self._pool.members:
            if self._pool.is_routable(member):
                continue
            former, task = self._tasks.get(member.name, (None, None))
            if former and task and not task.done():
                if former.key == member.key and self._targets.get(member.name) == live:
                    continue
                task.cancel()
                self._overtake(former)
            if member.name not in self._held_off:
                self._targets[member.name] = live
                task = asyncio.create_task(self._run(member), name=f"catch-up of {member.name}")
                task.add_done_callback(log_failure)
                self._tasks[member.name] = member, task

    def begin_rest(self) -> None:
        """None begins until `go_on`: a replica that is brought up takes devices."""
        self._rests = True

    async def rest(self) -> None:
        """The same, and those that are under way end: the next version comes before any goes on."""
        self.begin_rest()
        for member, task in self._tasks.values():
            if not task.done():
                self._overtake(member)
        await self._stop(list(self._tasks))

    def go_on(self) -> None:
        self._rests = False
        self.start()

    @asynccontextmanager
    async def held_off(self, members: Sequence[Member]) -> AsyncIterator[None]:
        """Inside, none of theirs is under way, while a publication stages and commits on them."""
        names = {member.name for member in members}
        self._held_off |= names
        try:
            await self._stop(names)
            yield
        finally:
            self._held_off -= names

    async def close(self) -> None:
        await self._stop(list(self._tasks))

    async def _stop(self, names: Iterable[str]) -> None:
        entries = [self._tasks.pop(name) for name in names if name in self._tasks]
        await cancel([task for _, task in entries])

    async def _run(self, member: Member) -> None:
        """Until the replica is proven at the live version or has registered again."""
        members = self._pool.members
        while members.is_current(member):
            await asyncio.sleep(self._seconds_left(members.newest(member)))
            before = members.newest(member)
            if not members.is_current(member) or self._pool.is_routable(before):
                return
            self._targets[member.name] = self._ledger.live
            try:
                await self._catch_up.bring_up(before)
            except TrimaranError as error:
                logger.warning("%s could not be brought up: %s", member.name, error)
            if members.newest(member) == before:
                await asyncio.sleep(self._pauses.first_retry)  # no process can give it yet

    def _overtake(self, member: Member) -> None:
        """Its catch-up is cut off. In the pause after a fault there was none."""
        if not self._seconds_left(self._pool.members.newest(member)):
            self._pool.members.tell(member, Member.overtake)

    def _seconds_left(self, member: Member) -> float:
        """The rest of the pause after its last fault, which goes on however closely publications follow each other."""
        due = member.failed_at + self._pauses.before_retry(member.failures)
        return max(due - time.monotonic(), 0.0)
