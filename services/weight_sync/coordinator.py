"""Makes a version live on the pool, in two phases, and keeps every replica at it.

    publish   STAGE on the members ─▶ commit record ─▶ COMMIT on each ─▶ sample read-back
    sleep     no read-back, no catch-up, SLEEP on each; until the next publication
    catch up  relay for replicas that joined, failed or were reported ─▶ COMMIT ─▶ full read-back

Before the commit record the old version serves everywhere and an abort
discards what was staged. After it replicas only roll forward: one that does
not follow leaves routing with the reason, is tried again after growing pauses,
and returns once it is proven at the live version. A replica that was proven
stays routable through a commit; one that joined with it is proven first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from services.weight_sync.catch_up import CatchUps
from services.weight_sync.ledger import VersionLedger
from services.weight_sync.members.former_life import find_gone
from services.weight_sync.members.member import Member, State
from services.weight_sync.members.offers import Connect
from services.weight_sync.members.pool import ReplicaPool
from services.weight_sync.parts import Parts
from services.weight_sync.pauses import DEFAULT_PAUSES, Pauses
from services.weight_sync.proving.proving import ReadBackProver
from services.weight_sync.publishing import Publisher
from services.weight_sync.staging.staging import Stager
from services.weight_sync.tasks import cancel, log_failure
from trimaran.clients import Registration, RolloutClient
from trimaran.config import WeightSyncSection
from trimaran.errors import (
    InputError,
    OutOfOrderError,
    StaleEpochError,
    TrimaranError,
)
from trimaran.types import (
    Caller,
    Peer,
    PolicyVersion,
    Proof,
    ProofLevel,
    Replica,
    Routing,
    VersionId,
    VersionRecord,
)

logger = logging.getLogger(__name__)

Published = tuple[Routing, dict[str, float]]

HEARTBEATS_PER_TIMEOUT = 5
SLEEP_SECONDS = 30.0
"""For a replica to leave its devices to the trainer. It drops what it has there, which takes moments; a
load that was under way is waited for."""


class Coordinator:
    """One run's versions. Call all methods in the event loop in which `start` was called.

    Example:

        ledger = await VersionLedger.open(store, run_id)
        coordinator = Coordinator(run_id, config, ledger, connect_senders, connect_rollout)
        coordinator.start()
        await coordinator.register(run_id, replica, peer)
        routing, metrics = await coordinator.publish(caller, version)
        await coordinator.close()
    """

    def __init__(
        self,
        run_id: str,
        config: WeightSyncSection,
        ledger: VersionLedger,
        connect_senders: Connect,
        connect_rollout: Callable[[Replica, Caller], RolloutClient],
        pauses: Pauses = DEFAULT_PAUSES,
        level: ProofLevel = ProofLevel.DELIVERED,
    ) -> None:
        """`level`: `run.proof`."""
        self._run_id = run_id
        self._config = config
        self._ledger = ledger
        self._pool = ReplicaPool(ledger, connect_rollout)
        self._prover = ReadBackProver(config, self._pool, ledger, level)
        self._stager = Stager(config, ledger.next_group_id, pauses)
        parts = Parts(config, ledger, self._pool, self._stager, self._prover, connect_senders)
        self._catch_ups = CatchUps(parts, pauses)
        self._publisher = Publisher(parts, self._catch_ups)
        self._publishing = asyncio.Lock()
        """One version at a time."""
        self._publications: dict[tuple[int, PolicyVersion], asyncio.Task[Published]] = {}
        """By epoch and version, so that a new controller never joins a publication that its predecessor
        began."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self.last_pause: float | None = None
        """Seconds for which generation paused for the last version; None before there was one."""

    async def forget_gone(self) -> None:
        """Before `start`. After a resume the replicas that are recorded are of the run's former
        life: no replica may be sent to them. Each comes back by registering."""
        for member in await find_gone(self._pool.members):
            logger.info("%s is gone since weight sync last ran", member.name)
            self._pool.members.tell(member, Member.leave)

    def start(self) -> None:
        """Goes on where a former process stopped."""
        if self._ledger.live is not None:
            logger.info("version %s is live, as recorded", self._ledger.live.version)
            if self._ledger.asleep:
                self._catch_ups.begin_rest()
            else:
                self._prover.resume()
        self._sweeping = asyncio.create_task(self._sweep(), name="sweep for silent replicas")
        self._sweeping.add_done_callback(log_failure)

    async def close(self) -> None:
        sweeping = [self._sweeping] if self._sweeping else []
        await cancel([*self._publications.values(), *self._leaving, *sweeping])
        await self._prover.stop()
        await self._catch_ups.close()
        await self._pool.close()

    def routing(self) -> Routing:
        return self._pool.routing()

    async def meet(self, caller: Caller) -> None:
        """Remember the newest epoch, in which replicas are spoken to.

        Raises InputError for another run, or for an epoch that no controller has drawn, and
        StaleEpochError for an older epoch.
        """
        self.check_run(caller.run_id)
        if caller.epoch > self._ledger.caller.epoch:
            newest = await self._ledger.newest_epoch()
            if caller.epoch > newest:
                raise InputError(
                    f"run {caller.run_id}: epoch {caller.epoch} was never drawn;"
                    f" the newest of this run is {newest}"
                )
            self._ledger.caller = Caller(caller.run_id, newest)
        self._check_epoch(caller)

    async def register(self, run_id: str, replica: Replica, peer: Peer) -> Registration:
        """The replica is brought to the live version, and proven, before it becomes routable."""
        self.check_run(run_id)
        if (former := self._pool.members.find(replica.name)) is not None:
            self._stager.give_up(former, "has registered again")
        member = await self._pool.register(replica, peer)
        logger.info("%s registered at %s", replica.name, replica.address)
        return Registration(member.incarnation, self._heartbeat_seconds)

    async def deregister(self, run_id: str, name: str, incarnation: int) -> None:
        """It leaves routing at once, and the pool once no publication has it in a transfer group."""
        self.check_run(run_id)
        member = self._pool.members.find(name)
        if member is None or member.incarnation != incarnation:
            return
        logger.info("%s is drained", name)
        # A replica that waits no longer must leave the pool all the same.
        task = asyncio.create_task(self._drain(member), name=f"end of {name}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        await asyncio.shield(task)

    async def _drain(self, member: Member) -> None:
        await self._pool.tell(member, Member.drain)
        async with self._publishing, self._catch_ups.held_off([member]):
            await self._pool.tell(member, Member.leave)

    async def heartbeat(
        self, run_id: str, name: str, incarnation: int, live: PolicyVersion | None
    ) -> bool:
        """False when this incarnation is unknown. A replica that holds something else than it should catches up."""
        self.check_run(run_id)
        return await self._pool.heartbeat(name, incarnation, live)

    async def report(self, name: str, reason: str) -> None:
        """The replica leaves routing, and returns once what it holds is proven again.

        Of one that is drained this is late news. Raises InputError for an unknown name.
        """
        if name in self._pool.members.drained:
            return
        member = self._pool.members.get(name)
        if member.state is not State.FAILED:
            await self._pool.exclude({member: f"reported: {reason}"})

    async def list_proofs(self, versions: Sequence[VersionId]) -> tuple[Proof, ...]:
        return await self._ledger.list_proofs(versions)

    async def list_faults(self, after: int) -> tuple[Proof, ...]:
        """Proofs that have a fault, in the order in which it was found, without the first `after`."""
        return await self._ledger.list_faults(after)

    async def list_versions(self, limit: int = 0) -> tuple[VersionRecord, ...]:
        """Committed ones, newest first; `limit` 0 means all."""
        return await self._ledger.list_versions(limit)

    async def verify(self, names: Sequence[str]) -> tuple[tuple[Proof, ...], dict[str, str]]:
        """Full read-back, now; proofs, and why a replica has none. No names: all that have registered.

        Raises InputError for a name that never registered.
        """
        members = [self._pool.members.get(name) for name in names] or tuple(self._pool.members)
        live, manifest = self._ledger.live, self._ledger.manifest
        unroutable = {m.name: m.reason or "is being updated" for m in members if not m.holds(live)}
        asked = [member for member in members if member.name not in unroutable]
        proofs: list[Proof] = []
        if live is not None and manifest is not None:
            answers = await asyncio.gather(
                *(self._prover.prove(member, live, manifest) for member in asked),
                return_exceptions=True,
            )
            for member, answer in zip(asked, answers, strict=True):
                if isinstance(answer, Proof):
                    proofs.append(answer)
                elif isinstance(answer, TrimaranError):
                    unroutable[member.name] = str(answer)
                else:
                    raise answer
        return tuple(proofs), unroutable

    async def sleep(self, caller: Caller) -> None:
        """Where the trainer has the same devices: every replica leaves them to it, until `publish`.

        Read-backs end, and no replica is brought up meanwhile, also after a restart of weight sync. A replica
        that does not sleep within `SLEEP_SECONDS` leaves routing, and its launcher ends it. Who sleeps
        stays what it is to a publication: live at its version.
        """
        await self.meet(caller)
        async with self._publishing:
            self._check_epoch(caller)
            # As before a STAGE, of which none comes while it could be read back.
            await self._prover.let_join(tuple(self._pool.members))
            await self._catch_ups.rest()
            await self._prover.finish_sample()
            await self._ledger.note_asleep(True)
            await self._pool.sleep(tuple(self._pool.members), SLEEP_SECONDS)

    async def publish(self, caller: Caller, version: PolicyVersion) -> Published:
        """Routing and metrics, once the version is live on at least one replica.

        A call that repeats a version waits for the same publication, or gets
        the routing without metrics. Raises OutOfOrderError for a version
        older than the live one, UnavailableError when no replica takes it
        within the join timeout, and what the trainer raises.
        """
        await self.meet(caller)
        key = caller.epoch, version
        task = self._publications.get(key)
        if task is None:
            task = asyncio.create_task(self._publish(caller, version))
            self._publications[key] = task
            task.add_done_callback(lambda _: self._publications.pop(key))
        return await asyncio.shield(task)  # a caller that goes away must not tear a version in two

    async def _publish(self, caller: Caller, version: PolicyVersion) -> Published:
        metrics: dict[str, float] = {}
        try:
            async with self._publishing:
                self._check_epoch(caller)
                if self._is_live(version):
                    await self._wake()
                else:
                    metrics = await self._publisher.make_live(caller, version)
                    self.last_pause = metrics["weight_sync/pause/seconds"]
        finally:
            self._catch_ups.go_on()
        await self._publisher.until_routable(version)
        return self.routing(), metrics

    async def _wake(self) -> None:
        """Those that sleep load what they had: what a controller asks for that was started again."""
        if self._ledger.asleep:
            for member in tuple(self._pool.members):
                self._pool.members.tell(member, Member.wake)
            await self._ledger.save_members()
            await self._ledger.note_asleep(False)

    def _is_live(self, version: PolicyVersion) -> bool:
        """Raises OutOfOrderError when another version of the same or a later step is."""
        live = self._ledger.live
        if live is None or live.version < version.version:
            return False
        if (live.version, live.root) == (version.version, version.root):
            return True
        raise OutOfOrderError(
            f"version {version.version} with root {version.root} cannot be published:"
            f" {live.version} with root {live.root} is live"
        )

    async def _sweep(self) -> None:
        """After every change, and often enough to notice silence: one task for all replicas."""
        timeout = self._config.heartbeat_timeout
        while True:
            silent = self._pool.members.silent(time.monotonic(), timeout)
            reason = f"silent for {timeout:g} s"
            for member in silent:
                self._stager.give_up(member, reason)
            try:
                await self._pool.exclude(dict.fromkeys(silent, reason))
            except TrimaranError as error:
                logger.warning("the sweep goes on without its store: %s", error)
            self._catch_ups.start()
            before = time.monotonic()
            await self._pool.wait_for_change(self._heartbeat_seconds)
            now = time.monotonic()
            if now - before > timeout / 2:
                logger.warning(
                    "this process stood still for %.1f s and heard no replica", now - before
                )
                self._pool.members.see_all(now)

    @property
    def _heartbeat_seconds(self) -> float:
        return self._config.heartbeat_timeout / HEARTBEATS_PER_TIMEOUT

    def check_question(self, run_id: str) -> None:
        """An operator who has only the address leaves the id out."""
        if run_id:
            self.check_run(run_id)

    def check_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            raise InputError(f"run {run_id!r} is not served here; this is {self._run_id!r}")

    def _check_epoch(self, caller: Caller) -> None:
        newest = self._ledger.caller.epoch
        if caller.epoch < newest:
            raise StaleEpochError(
                f"run {caller.run_id}: epoch {caller.epoch} was replaced by {newest}"
            )
