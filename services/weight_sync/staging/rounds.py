"""One round of STAGE: one try with each of some replicas, in three steps.

    send     each sender broadcasts in its transfer group    (tasks, side by side
    stage    each replica takes what its sources bring        with each other)
    judge    what do the answers say?   staged, suspect or failed

A collective does not say which of its members broke it, so blame is given by
what each member answers. One that is gone, or stays silent to the end, has failed.
One that reports a broken transfer may be the victim of another: it is a suspect
and may try again by relay, where its failures are its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from services.weight_sync.members.member import Member
from services.weight_sync.members.offers import SendTarget
from services.weight_sync.members.pool import Attempt
from services.weight_sync.staging.transfer_plan import TransferPlan
from trimaran.clients import RolloutClient
from trimaran.errors import (
    DeadlineError,
    OutOfOrderError,
    StaleEpochError,
    TransferError,
    TrimaranError,
    UnavailableError,
)
from trimaran.types import (
    CollectiveSource,
    Source,
    Staged,
    TransferGroup,
    TransferLimits,
    Transport,
)

logger = logging.getLogger(__name__)

Sends = Sequence[asyncio.Task[int]]
"""One a transfer group."""
Stages = Mapping[Member, asyncio.Task[Staged]]


@dataclass(frozen=True, slots=True)
class Round:
    """What is tried."""

    target: SendTarget
    attempt: Attempt
    plan: TransferPlan
    groups: Sequence[TransferGroup]
    """Those of the plan, opened."""
    sources: Mapping[str, tuple[Source, ...]]
    """By member name; seats in the groups among them."""
    rollouts: Mapping[Member, RolloutClient]
    """Who stages, each with its client."""
    limits: TransferLimits

    @property
    def seated(self) -> set[Member]:
        """Those in a transfer group: one that fails may take the others along."""
        return {seat for planned in self.plan.groups for seat in planned.seats}


@dataclass(slots=True)
class StageOutcome:
    """What a round came to, or a whole stage. Each member stands in one of the first three."""

    staged: dict[Member, Staged] = field(default_factory=dict)
    """Hold the whole version, every block verified, in their shadows."""
    failed: dict[Member, str] = field(default_factory=dict)
    """Are gone, silent, or at fault; with the reason."""
    suspects: dict[Member, str] = field(default_factory=dict)
    """Live, but could not get the version, perhaps through another's fault; what they hold is as it was."""
    delta_share: float | None = None
    """Bytes of the delta over those of the version, where one was used."""

    @property
    def copies(self) -> dict[Member, str]:
        """Where the version lies on those that have staged it; empty where that is another's copy."""
        return {member: staged.path for member, staged in self.staged.items()}

    @property
    def num_bytes(self) -> int:
        """Taken by all members that have staged."""
        return sum(staged.num_bytes for staged in self.staged.values())

    def metrics(self) -> dict[str, float]:
        found = {"weight_sync/bytes": float(self.num_bytes)}
        for staged in self.staged.values():
            for transport, size in staged.bytes_by_transport.items():
                key = f"weight_sync/bytes/{transport}"
                found[key] = found.get(key, 0.0) + size
        pulled = (Transport.RELAY in s.bytes_by_transport for s in self.staged.values())
        found["weight_sync/relayed"] = float(sum(pulled))
        found["weight_sync/shared"] = float(sum(not path for path in self.copies.values()))
        if self.delta_share is not None:
            found["weight_sync/delta/share"] = self.delta_share
        return found


def sources_of(
    plan: TransferPlan, groups: Sequence[TransferGroup]
) -> dict[str, tuple[Source, ...]]:
    """Each member's sources, by name: the planned ones, and its seats in the opened groups."""
    sources = dict(plan.sources)
    for planned, group in zip(plan.groups, groups, strict=True):
        for rank, seat in enumerate(planned.seats, start=1):
            source = CollectiveSource(planned.blocks, group, rank, planned.delta)
            sources[seat.name] = (*sources[seat.name], source)
    return sources


class StageCalls:
    """The calls of `stage_weights` that are under way."""

    def __init__(self) -> None:
        self._given_up: dict[tuple[str, int], asyncio.Future[str]] = {}
        """By `Member.key`; the result is the reason."""

    async def ask(self, member: Member, call: Coroutine[Any, Any, Staged]) -> Staged:
        """The answer. Raises UnavailableError once the member is given up."""
        given_up = self._given_up[member.key] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(call)
        try:
            await asyncio.wait({task, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise UnavailableError(given_up.result())
            return task.result()
        finally:
            self._given_up.pop(member.key, None)
            task.cancel()

    def give_up(self, member: Member, reason: str) -> None:
        given_up = self._given_up.get(member.key)
        if given_up is not None and not given_up.done():
            given_up.set_result(reason)


def send(round: Round) -> Sends:
    """Every sender sends its blocks, or the pieces of its delta, in its group."""
    return [
        asyncio.create_task(
            round.target.senders[planned.sender].send_weights(
                *(round.target.version.version, group.group_id, planned.blocks),
                *(planned.delta.base_root if planned.delta else "", round.limits),
            )
        )
        for planned, group in zip(round.plan.groups, round.groups, strict=True)
    ]


def stage(round: Round, calls: StageCalls) -> Stages:
    """Every member takes the version into its shadow."""
    target, attempt = round.target, round.attempt
    return {
        member: asyncio.create_task(
            calls.ask(
                member,
                rollout.stage_weights(
                    *(target.version, target.manifest, round.sources[member.name]),
                    *(round.limits, attempt.name, member == attempt.keeper),
                ),
            )
        )
        for member, rollout in round.rollouts.items()
    }


def judge(round: Round, sends: Sends, stages: Stages, in_time: bool) -> StageOutcome:
    """All tasks have ended. `in_time`: the transfers in groups ended before the time was over.

    Raises StaleEpochError when the controller is out of date, and what a sender raises that
    could not send at all.
    """
    answers, seated = StageOutcome(), round.seated
    for member, task in stages.items():
        _judge_member(answers, round, member, task, in_time and member in seated)
    for sending in sends:
        _judge_sender(answers, sending, round.limits.timeout)
    return answers


def _judge_member(
    answers: StageOutcome,
    round: Round,
    member: Member,
    task: asyncio.Task[Staged],
    may_be_a_victim: bool,
) -> None:
    version, num_blocks = round.target.version, round.target.manifest.num_blocks
    if task.cancelled():
        silent = f"no answer to stage {version.version} in time"
        (answers.suspects if may_be_a_victim else answers.failed)[member] = silent
    elif isinstance(error := task.exception(), StaleEpochError):
        raise error  # it is the controller that is out of date, not the replica
    elif isinstance(error, TransferError | DeadlineError):
        answers.suspects[member] = f"stage {version.version}: {error}"
    elif isinstance(error, OutOfOrderError) and any(
        source.delta for source in round.sources[member.name]
    ):
        answers.suspects[member] = f"the delta was refused: {error}"
    elif isinstance(error, TrimaranError):
        answers.failed[member] = f"stage {version.version}: {error}"
    elif error is not None:
        raise error
    elif (staged := task.result()).root != version.root:
        answers.suspects[member] = f"computed root {staged.root} instead of {version.root}"
    elif staged.num_blocks != num_blocks:
        answers.failed[member] = f"holds {staged.num_blocks} of {num_blocks} blocks"
    else:
        answers.staged[member] = staged


def _judge_sender(answers: StageOutcome, sending: asyncio.Task[int], timeout: float) -> None:
    if sending.cancelled():
        if not answers.staged and not answers.failed:  # no other member can be to blame
            raise DeadlineError(f"the trainer did not end its send within {timeout:g} s")
    elif isinstance(error := sending.exception(), TransferError | DeadlineError):
        logger.info("a send broke: %s", error)
    elif error is not None:
        raise error
