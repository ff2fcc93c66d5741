"""One publication: STAGE on the members, the commit record, COMMIT on each."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from services.weight_sync.catch_up import CatchUps
from services.weight_sync.members.member import Member, State
from services.weight_sync.members.offers import SendTarget, ask_senders
from services.weight_sync.members.pool import Attempt
from services.weight_sync.parts import Parts
from services.weight_sync.staging.rounds import StageOutcome
from trimaran.errors import StaleEpochError, UnavailableError
from trimaran.types import Caller, PolicyVersion, Proof

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Between tries while no replica takes the version."""


class Publisher:
    """Takes one version through STAGE, the commit record and COMMIT."""

    def __init__(self, parts: Parts, catch_ups: CatchUps) -> None:
        self._config = parts.config
        self._ledger = parts.ledger
        self._pool = parts.pool
        self._stager = parts.stager
        self._prover = parts.prover
        self._connect_senders = parts.connect_senders
        self._catch_ups = catch_ups

    async def make_live(self, caller: Caller, version: PolicyVersion) -> dict[str, float]:
        """For `caller`, in its epoch. Returns the metrics.

        Raises what the trainer raises, UnavailableError when no replica takes the
        version within the join timeout, and StaleEpochError when a newer
        controller has taken over before the commit record; the old version then
        serves on.
        """
        started = time.monotonic()
        async with AsyncExitStack() as held:
            timeout = self._config.join_timeout
            asked = ask_senders(self._connect_senders, caller, version, timeout)
            async with asked as target:
                await self._ledger.prepare(target.manifest)
                attempt, outcome = await self._stage(caller, target, held)
            staged = time.monotonic()
            metrics = self._prover.metrics()  # of the version that is about to go
            pauses = await self._commit(target, attempt, outcome)
        committed = time.monotonic()
        logger.info(
            "version %s is live on %d replicas: staged %.0f MB in %.2f s, committed in %.2f s, root %s",
            *(version.version, len(pauses), outcome.num_bytes / 1e6),
            *(staged - started, committed - staged, version.root),
        )
        return metrics | {
            "weight_sync/stage/seconds": staged - started,
            "weight_sync/commit/seconds": committed - staged,
            "weight_sync/pause/seconds": max(pauses, default=0.0),
            "weight_sync/replicas": float(len(pauses)),
            **outcome.metrics(),
        }

    async def _stage(
        self, caller: Caller, target: SendTarget, held: AsyncExitStack
    ) -> tuple[Attempt, StageOutcome]:
        """On the members that take part; see `Members.taking_part`.

        `held` keeps their catch-ups off until they have committed.
        """
        await self._prover.let_join(self._pool.members.taking_part())
        deadline = time.monotonic() + self._config.join_timeout
        while True:
            members = self._pool.members.taking_part()
            attempt = self._pool.attempt(caller, members)
            async with AsyncExitStack() as stack:
                # A catch-up that hangs must not hold the others up.
                await stack.enter_async_context(self._catch_ups.held_off(members))
                outcome = await self._stage_on(target, attempt, members)
                if outcome.staged:
                    held.push_async_exit(stack.pop_all())
                    return attempt, outcome
            left = deadline - time.monotonic()
            if left <= 0:
                seconds = self._config.join_timeout
                raise UnavailableError(self._nobody(target.version, seconds, outcome.suspects))
            await self._pool.wait_for_change(min(RETRY_SECONDS, left))

    async def _stage_on(
        self, target: SendTarget, attempt: Attempt, members: Sequence[Member]
    ) -> StageOutcome:
        if not members:
            return StageOutcome()
        version = target.version.version
        try:
            async with self._pool.connected(members, attempt.caller) as rollouts:
                outcome = await self._stager.stage(target, attempt, rollouts)
        except BaseException:
            self._pool.abort(members, version, attempt)
            raise
        self._pool.abort((*outcome.failed, *outcome.suspects), version, attempt)
        await self._pool.exclude(outcome.failed)
        return outcome

    async def _commit(
        self, target: SendTarget, attempt: Attempt, outcome: StageOutcome
    ) -> list[float]:
        """The commit record, then COMMIT on each. Returns the pauses, in seconds."""
        live = target.version
        await self._prover.finish_sample()
        proofs = [
            Proof(live.version, member.maker, staged.root, staged.num_blocks, 0)
            for member, staged in outcome.staged.items()
            if self._pool.members.get(member.name).state is State.PROVEN
        ]
        try:
            await self._ledger.commit(attempt.caller, live, target.manifest, proofs)
        except (UnavailableError, StaleEpochError):
            self._pool.abort(tuple(outcome.staged), live.version, attempt)
            raise
        pauses = await self._pool.commit(live, outcome.copies, self._config.commit_timeout)
        # Only now: until the record they served the version before it, as they should.
        await self._pool.exclude(outcome.suspects)
        self._prover.start_sample()
        return pauses

    async def until_routable(self, version: PolicyVersion) -> None:
        """On the first publication every replica has to be proven, which takes its time.

        Raises UnavailableError.
        """
        seconds = self._config.join_timeout + self._config.prove_timeout
        deadline = time.monotonic() + seconds
        while not self._pool.routable():
            left = deadline - time.monotonic()
            if left <= 0:
                raise UnavailableError(self._nobody(version, seconds))
            await self._pool.wait_for_change(left)

    def _nobody(
        self, version: PolicyVersion, seconds: float, suspects: Mapping[Member, str] | None = None
    ) -> str:
        routing = self._pool.routing()
        reasons = {m.name: why for m, why in (suspects or {}).items()} | dict(routing.unroutable)
        described = replace(routing, unroutable=reasons).describe_unroutable()
        return (
            f"no replica took version {version.version} within {seconds:g} s"
            f" ({described or 'none has registered'})"
        )
