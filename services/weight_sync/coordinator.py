"""Makes a version live on the pool, in two phases, and keeps every replica at it.

    publish   STAGE on the members ─▶ commit record ─▶ COMMIT on each ─▶ routable
    catch up  the same for one replica that joined, failed or was reported

Before the commit record the old version serves everywhere and an abort
discards what was staged. After it replicas only roll forward: one that does
not follow leaves routing with the reason, is tried again after growing pauses,
and returns once it holds the live version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from services.weight_sync.catch_up import FIRST_PAUSE_SECONDS, CatchUps, cancel
from services.weight_sync.ledger import Ledger
from services.weight_sync.members import Member
from services.weight_sync.pool import Pool
from services.weight_sync.staging import Outcome, Rollout, Stager, Trainer
from trimaran.config import WeightSyncSection
from trimaran.errors import (
    InputError,
    OutOfOrderError,
    StaleEpochError,
    TrimaranError,
    UnavailableError,
)
from trimaran.store import SqliteStore
from trimaran.types import (
    Caller,
    Manifest,
    PolicyVersion,
    Replica,
    Routing,
    VersionId,
    VersionState,
)

logger = logging.getLogger(__name__)

Published = tuple[Routing, dict[str, float]]


class Coordinator:
    """One run's versions. Every method is for the event loop in which `start` was called."""

    def __init__(
        self,
        run_id: str,
        config: WeightSyncSection,
        store: SqliteStore,
        connect_trainer: Callable[[Caller], Trainer],
        connect_rollout: Callable[[Replica, Caller], Rollout],
        first_pause: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self._run_id = run_id
        self._config = config
        self._connect_trainer = connect_trainer
        self._first_pause = first_pause
        self._ledger = Ledger(store, run_id)
        self._live, self._caller, members = self._ledger.recover()
        self._pool = Pool(members, self._ledger, connect_rollout)
        self._members = members
        self._stager = Stager(config, self._ledger.next_group_id)
        self._transfer = asyncio.Lock()
        """The trainer sends to one group at a time."""
        self._publications: dict[PolicyVersion, asyncio.Task[Published]] = {}
        self._catch_ups = CatchUps(members, self._bring_up, first_pause)

    def start(self) -> None:
        """Goes on where a former process stopped."""
        if self._live is not None:
            logger.info("version %s is live, as recorded", self._live.version)
        self._start_catch_ups()

    async def close(self) -> None:
        await cancel(list(self._publications.values()))
        await self._catch_ups.stop()
        await self._pool.close()

    def routing(self) -> Routing:
        live = self._live_id()
        return Routing(self._live, self._members.routable(live), self._members.unroutable(live))

    async def meet(self, caller: Caller) -> None:
        """Remember the newest epoch, in which replicas are spoken to. Raises for another run or an older epoch."""
        self._check_run(caller.run_id)
        self._check_epoch(caller)
        if caller.epoch > self._caller.epoch:
            self._caller = caller
            await self._ledger.save_epoch(caller)

    async def register(self, run_id: str, replica: Replica) -> None:
        """The replica is brought to the live version before it becomes routable."""
        self._check_run(run_id)
        member = await self._pool.register(replica)
        logger.info("%s registered at %s", replica.name, replica.address)
        self._start_catch_up(member)

    async def report(self, name: str, reason: str) -> None:
        """The replica leaves routing, and returns once it has taken the live version again."""
        member = self._members.get(name)
        if not member.reason:
            await self._pool.exclude({member: f"reported: {reason}"})
        self._start_catch_up(member)

    async def publish(self, caller: Caller, version: PolicyVersion) -> Published:
        """Routing and metrics, once the version is live on at least one replica.

        A call that repeats a version waits for the same publication, or gets
        the routing without metrics. Raises OutOfOrderError for a version
        older than the live one, UnavailableError when no replica takes it
        within the join timeout, and what the trainer raises.
        """
        await self.meet(caller)
        version = replace(version, state=VersionState.STAGING)
        task = self._publications.get(version)
        if task is None:
            task = asyncio.create_task(self._publish(caller, version))
            self._publications[version] = task
            task.add_done_callback(lambda _: self._publications.pop(version))
        return await asyncio.shield(task)  # a caller that goes away must not tear a version in two

    async def _publish(self, caller: Caller, version: PolicyVersion) -> Published:
        await self._catch_ups.stop()  # a replica that hangs must not hold the others up
        metrics: dict[str, float] = {}
        try:
            async with self._transfer:
                self._check_epoch(caller)
                if not self._is_live(version):
                    metrics = await self._make_live(version)
        finally:
            self._start_catch_ups()
        await self._until_routable(version)
        return self.routing(), metrics

    def _is_live(self, version: PolicyVersion) -> bool:
        """Raises OutOfOrderError when another version of the same or a later step is."""
        live = self._live
        if live is None or live.version < version.version:
            return False
        if (live.version, live.root) == (version.version, version.root):
            return True
        raise OutOfOrderError(
            f"version {version.version} with root {version.root} cannot be published:"
            f" {live.version} with root {live.root} is live"
        )

    async def _make_live(self, version: PolicyVersion) -> dict[str, float]:
        started = time.monotonic()
        trainer = self._connect_trainer(self._caller)
        try:
            manifest = await self._manifest(trainer, version)
            outcome = await self._stage(trainer, version, manifest)
        finally:
            await trainer.close()
        staged = time.monotonic()
        live = replace(version, state=VersionState.ACTIVE)
        await self._ledger.commit(live, [member.name for member in outcome.staged])
        self._live = live
        pauses = await self._commit(live, outcome.staged)
        committed = time.monotonic()
        logger.info(
            "version %s is live on %d replicas: staged %.0f MB in %.2f s, committed in %.2f s, root %s",
            *(live.version, len(pauses), outcome.num_bytes / 1e6),
            *(staged - started, committed - staged, live.root),
        )
        return {
            "weight_sync/stage/seconds": staged - started,
            "weight_sync/commit/seconds": committed - staged,
            "weight_sync/pause/seconds": max(pauses, default=0.0),
            "weight_sync/bytes": float(outcome.num_bytes),
            "weight_sync/replicas": float(len(pauses)),
        }

    async def _manifest(self, trainer: Trainer, version: PolicyVersion) -> Manifest:
        held, manifest = await trainer.get_policy_version(self._config.join_timeout)
        if (held.version, held.root, manifest.root) == (
            version.version,
            version.root,
            version.root,
        ):
            return manifest
        raise OutOfOrderError(
            f"version {version.version} with root {version.root} cannot be sent: the trainer"
            f" holds {held.version} with root {held.root} (manifest {manifest.root})"
        )

    async def _stage(self, trainer: Trainer, version: PolicyVersion, manifest: Manifest) -> Outcome:
        """On the members without a fault; on all when every one has a fault."""
        deadline = time.monotonic() + self._config.join_timeout
        while True:
            everybody = tuple(self._members)
            members = tuple(m for m in everybody if not m.failures) or everybody
            outcome = await self._stage_on(trainer, version, manifest, members)
            left = deadline - time.monotonic()
            if outcome.staged:
                return outcome
            if left <= 0:
                raise UnavailableError(self._nobody(version))
            await self._pool.wait_for_change(min(self._first_pause, left))

    async def _stage_on(
        self,
        trainer: Trainer,
        version: PolicyVersion,
        manifest: Manifest,
        members: Sequence[Member],
    ) -> Outcome:
        if not members:
            return Outcome()
        try:
            async with self._pool.connected(self._caller, members) as rollouts:
                outcome = await self._stager.stage(trainer, rollouts, members, version, manifest)
        except BaseException:
            self._pool.abort(self._caller, members, version.version)
            raise
        self._pool.abort(self._caller, tuple(outcome.failed), version.version)
        await self._pool.exclude(outcome.failed)
        return outcome

    async def _commit(self, live: PolicyVersion, members: Sequence[Member]) -> list[float]:
        return await self._pool.commit(self._caller, live, members, self._config.commit_timeout)

    async def _until_routable(self, version: PolicyVersion) -> None:
        deadline = time.monotonic() + self._config.join_timeout
        while not self.routing().routable:
            left = deadline - time.monotonic()
            if left <= 0:
                raise UnavailableError(self._nobody(version))
            await self._pool.wait_for_change(left)

    def _nobody(self, version: PolicyVersion) -> str:
        return (
            f"no replica took version {version.version} within"
            f" {self._config.join_timeout:g} s ({self.routing().describe_unroutable() or 'none has registered'})"
        )

    def _start_catch_ups(self) -> None:
        for member in self._members.behind(self._live_id()):
            self._start_catch_up(member)

    def _start_catch_up(self, member: Member) -> None:
        if self._live is not None:
            self._catch_ups.start(member)

    async def _bring_up(self, member: Member) -> bool:
        """Stage and commit the live version, once. True when the replica holds it."""
        async with self._transfer:
            live = self._live
            assert live is not None, "nothing to catch up with"
            if self._members.get(member.name).version == live.version:
                return True
            trainer = self._connect_trainer(self._caller)
            try:
                manifest = await self._manifest(trainer, live)
                outcome = await self._stage_on(trainer, live, manifest, [member])
            except TrimaranError as error:
                # It holds a newer version, which is about to be published, or is not up.
                logger.debug("%s waits for version %s: %s", member.name, live.version, error)
                return False
            finally:
                await trainer.close()
            if not outcome.staged or not await self._commit(live, outcome.staged):
                return False
            logger.info("%s holds version %s and is routable", member.name, live.version)
            return True

    def _live_id(self) -> VersionId | None:
        return self._live.version if self._live else None

    def _check_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            raise InputError(f"run {run_id!r} is not served here; this is {self._run_id!r}")

    def _check_epoch(self, caller: Caller) -> None:
        if caller.epoch < self._caller.epoch:
            raise StaleEpochError(
                f"run {caller.run_id}: epoch {caller.epoch} was replaced by {self._caller.epoch}"
            )
