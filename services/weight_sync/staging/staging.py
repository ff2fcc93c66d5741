"""STAGE: bring one version into the host shadows of some replicas, whatever the others do.

plan ─▶ open groups ─▶ send ∥ stage ─▶ judge            first round (`rounds.py`), one of each host
                                         │
  relay, each on its own ◀── suspects ◀──┤              next rounds
    the owner's memory   ◀── neighbours ◀┘              (`sharing.py`)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from services.weight_sync.members.member import Member
from services.weight_sync.members.offers import SendTarget
from services.weight_sync.members.pool import Attempt
from services.weight_sync.pauses import Pauses
from services.weight_sync.staging.rounds import (
    Round,
    Sends,
    StageCalls,
    StageOutcome,
    Stages,
    judge,
    send,
    sources_of,
    stage,
)
from services.weight_sync.staging.sharing import (
    Lenders,
    find_lenders,
    plan_shared,
    prefer_owners,
    take_turns,
)
from services.weight_sync.staging.transfer_groups import TransferGroups
from services.weight_sync.staging.transfer_plan import (
    TransferPlan,
    delta_share,
    plan_relay,
    plan_stage,
)
from services.weight_sync.tasks import cancel
from trimaran.clients import RolloutClient
from trimaran.config import WeightSyncSection
from trimaran.types import TransferLimits

logger = logging.getLogger(__name__)

RELAY_SHARE = 0.4
"""The share of the stage timeout that is kept for those whose transfer breaks."""
ANSWER_SHARE = 0.1
"""The share of a round that is kept for answers: a member that waits for a frozen one must be heard in time."""


class Stager:
    """Stages versions, one after the other; single replicas beside them.

    Example:

        async with pool.connected(members) as rollouts:
            outcome = await stager.stage(target, attempt, rollouts)
        outcome.metrics()["weight_sync/bytes/memory"]
    """

    def __init__(
        self,
        config: WeightSyncSection,
        next_group_id: Callable[[], Awaitable[int]],
        pauses: Pauses,
    ) -> None:
        """`next_group_id` never gives a number twice, not even after a restart."""
        self._config = config
        self._groups = TransferGroups(next_group_id)
        self._calls = StageCalls()
        self._settle = pauses.settle

    async def stage(
        self, target: SendTarget, attempt: Attempt, rollouts: Mapping[Member, RolloutClient]
    ) -> StageOutcome:
        """From the senders, on all members of `rollouts`. Ends within the stage timeout.

        Raises what a sender raises when it cannot send at all.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.stage_timeout
        transport, fan_out = self._config.transport, self._config.relay_fan_out
        takers, waiting = take_turns(prefer_owners(list(rollouts)), {}, transport)
        plan = plan_stage(target.manifest, target.offers, takers, transport, fan_out)
        share = self._config.stage_timeout * (1 - RELAY_SHARE)
        asked = {member: rollouts[member] for member in takers}
        first = await self._run(target, attempt, plan, asked, share)
        outcome = StageOutcome(first.staged, first.failed, {}, delta_share(target.manifest, plan))
        if first.suspects:
            _log_relay(target, first)
        waiting += first.suspects
        patched = plan.patched & {member.name for member in first.staged}
        while waiting and (left := deadline - loop.time()) > 0:
            lenders = find_lenders(outcome.copies, transport, patched)
            takers, waiting = take_turns(waiting, lenders, transport)
            plan = self._plan_rest(target, takers, lenders, outcome.copies)
            asked = {member: rollouts[member] for member in takers}
            share = left * (1 - RELAY_SHARE) if waiting else left
            found = await self._run(target, attempt, plan, asked, share)
            outcome.staged |= found.staged
            outcome.failed |= found.failed
            outcome.suspects |= found.suspects
        outcome.suspects |= dict.fromkeys(waiting, "its host did not have the version in time")
        return outcome

    def _plan_rest(
        self,
        target: SendTarget,
        members: Sequence[Member],
        lenders: Lenders,
        copies: Mapping[Member, str],
    ) -> TransferPlan:
        """After the first round."""
        manifest, offers, fan_out = target.manifest, target.offers, self._config.relay_fan_out
        holders = [member for member, path in copies.items() if path]
        shared = plan_shared(manifest, offers, members, lenders, holders)
        pullers = [member for member in members if member.name not in shared.sources]
        relay = plan_relay(manifest, offers, pullers, holders, fan_out)
        return TransferPlan(shared.sources | relay.sources)

    async def stage_alone(
        self,
        target: SendTarget,
        attempt: Attempt,
        plan: TransferPlan,
        member: Member,
        rollout: RolloutClient,
    ) -> StageOutcome:
        """By a plan without groups, beside whatever else is under way."""
        timeout = self._config.stage_timeout
        found = await self._run(target, attempt, plan, {member: rollout}, timeout)
        return StageOutcome(found.staged, found.failed | found.suspects)

    def give_up(self, member: Member, reason: str) -> None:
        """Its silence must not hold up the others until the stage timeout."""
        self._calls.give_up(member, reason)

    async def _run(
        self,
        target: SendTarget,
        attempt: Attempt,
        plan: TransferPlan,
        rollouts: Mapping[Member, RolloutClient],
        timeout: float,
    ) -> StageOutcome:
        """One round. Ends within `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        join_timeout = min(timeout, self._config.join_timeout)
        groups = await self._groups.open(plan.groups, target.senders, join_timeout)
        left = max(deadline - loop.time(), 0.0)
        bucket_bytes = self._config.bucket_mib << 20
        limits = TransferLimits(bucket_bytes=bucket_bytes, timeout=left * (1 - ANSWER_SHARE))
        sources = sources_of(plan, groups)
        round = Round(target, attempt, plan, groups, sources, rollouts, limits)
        sends = send(round)
        stages = stage(round, self._calls)
        in_time = await self._end_round(round.seated, sends, stages, left)
        return judge(round, sends, stages, in_time)

    async def _end_round(
        self, seated: set[Member], sends: Sends, stages: Stages, timeout: float
    ) -> bool:
        """Wait for all tasks; cancels those that have not ended. False when time ran out for the
        transfers in groups."""
        together = [*sends, *(task for member, task in stages.items() if member in seated)]
        alone = [task for member, task in stages.items() if member not in seated]
        try:
            in_time, _ = await asyncio.gather(
                _end_together(together, timeout, self._settle), _end(alone, timeout)
            )
        finally:
            if any(_failed(task) for task in together):
                self._groups.forget()
            await cancel([*sends, *stages.values()])
        return in_time


async def _end_together(tasks: Sequence[asyncio.Task[Any]], timeout: float, settle: float) -> bool:
    """One that fails ends them all. False when time ran out."""
    if not tasks:
        return True
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    _, pending = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
    in_time = loop.time() < deadline
    await _end(list(pending), settle if in_time else 0.0)
    return in_time


async def _end(tasks: Sequence[asyncio.Task[Any]], timeout: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


def _failed(task: asyncio.Task[Any]) -> bool:
    return not task.done() or task.cancelled() or task.exception() is not None


def _log_relay(target: SendTarget, found: StageOutcome) -> None:
    logger.warning(
        "version %s: transfer broken (%s); %s go on by relay",
        target.version.version,
        "; ".join(f"{m.name}: {why}" for m, why in (found.failed | found.suspects).items()),
        ", ".join(member.name for member in found.suspects),
    )
