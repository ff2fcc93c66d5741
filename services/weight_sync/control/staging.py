"""STAGE: bring one version into the host shadows of some replicas, whatever the others do.

    plan ─▶ open groups ─▶ stage on each replica ∥ send ─▶ compare roots
                                     │
              relay, each on its own ◀── its transfer broke, it lives ──▶ lost

A collective does not say which of its members broke it, so blame is given by
what each answers: a replica that is gone or stays silent to the end is lost;
one that reports a broken transfer may be the victim of another and pulls the
version by relay, where its failures are its own.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from services.weight_sync.control.members import Member
from services.weight_sync.control.offers import Target, Trainer
from services.weight_sync.control.plan import GroupPlan, Plan, delta_share, plan_relay, plan_stage
from services.weight_sync.control.pool import Attempt, Rollout
from services.weight_sync.control.tasks import cancel
from trimaran.config import WeightSyncSection
from trimaran.errors import (
    DeadlineError,
    OutOfOrderError,
    StaleEpochError,
    TransferError,
    TrimaranError,
    UnavailableError,
)
from trimaran.types import Source, Staged, TransferGroup, Transport

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""After the first failure of a transfer, how long the others in its group may take to end theirs."""
RELAY_SHARE = 0.4
"""Of the stage timeout, kept for those whose transfer breaks."""
ANSWER_SHARE = 0.1
"""Of a round, kept for the answers: who waits for a frozen member must be heard before the end."""


@dataclass(slots=True)
class Outcome:
    staged: dict[Member, Staged] = field(default_factory=dict)
    """Hold the whole version, every block verified, in their shadows."""
    failed: dict[Member, str] = field(default_factory=dict)
    unstaged: dict[Member, str] = field(default_factory=dict)
    """Live, but could not get the version; what they hold is as it was."""
    num_bytes: dict[Transport, int] = field(default_factory=dict)
    """Taken by the members, by the way that they went."""
    num_relayed: int = 0
    """Members that pulled by relay."""
    delta_share: float | None = None
    """Bytes of the delta over those of the version, where one was used."""

    def metrics(self) -> dict[str, float]:
        found = {f"weight_sync/bytes/{way}": float(n) for way, n in self.num_bytes.items()}
        found["weight_sync/bytes"] = float(sum(self.num_bytes.values()))
        found["weight_sync/relayed"] = float(self.num_relayed)
        if self.delta_share is not None:
            found["weight_sync/delta/share"] = self.delta_share
        return found


@dataclass(slots=True)
class _Round:
    staged: dict[Member, Staged] = field(default_factory=dict)
    lost: dict[Member, str] = field(default_factory=dict)
    suspects: dict[Member, str] = field(default_factory=dict)


class Stager:
    """Keeps each sender's transfer group while it is healthy and its members stay the same."""

    def __init__(self, config: WeightSyncSection, next_group_id: Callable[[], Awaitable[int]]):
        """`next_group_id` never gives a number twice, not even after a restart."""
        self._config = config
        self._next_group_id = next_group_id
        self._groups: dict[int, tuple[tuple[tuple[str, int], ...], TransferGroup]] = {}
        self._asked: dict[tuple[str, int], asyncio.Future[str]] = {}

    async def stage(
        self,
        target: Target,
        attempt: Attempt,
        members: Sequence[Member],
        rollouts: Mapping[str, Rollout],
    ) -> Outcome:
        """From the senders. Ends within the stage timeout.

        Raises what a sender raises when it cannot send at all.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.stage_timeout
        transport, fan_out = self._config.transport, self._config.relay_fan_out
        plan = plan_stage(target.manifest, target.offers, members, transport, fan_out)
        share = self._config.stage_timeout * (1 - RELAY_SHARE)
        first = await self._run(target, attempt, plan, members, rollouts, share)
        outcome = Outcome(delta_share=delta_share(target.manifest, plan))
        self._add(outcome, first, plan)
        if again := list(first.suspects):
            _log_relay(target, first)
            holders = list(first.staged)
            plan = plan_relay(target.manifest, target.offers, again, holders, fan_out)
            left = deadline - loop.time()
            last = await self._run(target, attempt, plan, again, rollouts, left)
            self._add(outcome, last, plan)
            outcome.unstaged |= last.suspects
        return outcome

    async def stage_alone(
        self, target: Target, attempt: Attempt, plan: Plan, member: Member, rollout: Rollout
    ) -> Outcome:
        """By a plan without groups, beside whatever else is under way."""
        rollouts, timeout = {member.name: rollout}, self._config.stage_timeout
        found = await self._run(target, attempt, plan, [member], rollouts, timeout)
        outcome = Outcome(failed=found.suspects)
        self._add(outcome, found, plan)
        return outcome

    def give_up(self, member: Member, reason: str) -> None:
        """Its silence must not hold up the others until the stage timeout."""
        gone = self._asked.get(member.key)
        if gone is not None and not gone.done():
            gone.set_result(reason)

    async def _ask(self, member: Member, call: Coroutine[Any, Any, Staged]) -> Staged:
        """The answer, or UnavailableError once the member is given up."""
        gone = self._asked[member.key] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(call)
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise UnavailableError(gone.result())
            return task.result()
        finally:
            self._asked.pop(member.key, None)
            task.cancel()

    def _add(self, outcome: Outcome, found: _Round, plan: Plan) -> None:
        outcome.staged |= found.staged
        outcome.failed |= found.lost
        in_groups = {seat.name for group in plan.groups for seat in group.seats}
        for member, staged in found.staged.items():
            ways = [Transport.COLLECTIVE] * (member.name in in_groups)
            ways += [source.transport for source in plan.sources[member.name]]
            outcome.num_relayed += Transport.RELAY in ways
            way = ways[0]
            outcome.num_bytes[way] = outcome.num_bytes.get(way, 0) + staged.num_bytes

    async def _run(
        self,
        target: Target,
        attempt: Attempt,
        plan: Plan,
        members: Sequence[Member],
        rollouts: Mapping[str, Rollout],
        timeout: float,
    ) -> _Round:
        """One try with each member, judged by its answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        bucket_bytes = self._config.bucket_mib << 20
        groups = await asyncio.gather(
            *(self._open(target.senders[g.sender], g, timeout) for g in plan.groups)
        )
        sources = _with_groups(plan, groups)
        left = max(deadline - loop.time(), 0.0)
        limit = left * (1 - ANSWER_SHARE)
        sends = [
            asyncio.create_task(
                target.senders[planned.sender].send_weights(
                    *(target.version.version, group.group_id, planned.blocks),
                    *(planned.delta.base_root if planned.delta else "", bucket_bytes, limit),
                )
            )
            for planned, group in zip(plan.groups, groups, strict=True)
        ]
        stages = {
            member: asyncio.create_task(
                self._ask(
                    member,
                    rollouts[member.name].stage_weights(
                        *(target.version, target.manifest, sources[member.name]),
                        *(bucket_bytes, limit, attempt.name, member == attempt.keeper),
                    ),
                )
            )
            for member in members
        }
        seated = {seat for planned in plan.groups for seat in planned.seats}
        together = [*sends, *(task for member, task in stages.items() if member in seated)]
        alone = [task for member, task in stages.items() if member not in seated]
        try:
            in_time, _ = await asyncio.gather(_end_together(together, left), _end(alone, left))
        finally:
            if any(_failed(task) for task in together):
                self._groups.clear()
            await cancel([*sends, *stages.values()])
        found = _Round()
        for member, task in stages.items():
            _judge(found, member, task, target, sources[member.name], in_time and member in seated)
        _raise_if_a_sender_is_gone(sends, found, left)
        return found

    async def _open(self, sender: Trainer, planned: GroupPlan, timeout: float) -> TransferGroup:
        timeout = min(timeout, self._config.join_timeout)
        keys = tuple(seat.key for seat in planned.seats)
        kept_keys, kept = self._groups.get(planned.sender, ((), None))
        if kept is not None and kept_keys == keys:
            try:
                return await sender.open_transfer(kept, timeout)
            except TransferError as error:
                logger.info("transfer group %d is not used again: %s", kept.group_id, error)
        group_id = await self._next_group_id()
        group = TransferGroup(group_id, secrets.token_hex(16), len(planned.seats) + 1, "")
        self._groups.pop(planned.sender, None)
        opened = await sender.open_transfer(group, timeout)
        self._groups[planned.sender] = keys, opened
        return opened


def _with_groups(plan: Plan, groups: Sequence[TransferGroup]) -> dict[str, tuple[Source, ...]]:
    """Each member's sources, its seats in the opened groups among them."""
    sources = dict(plan.sources)
    for planned, group in zip(plan.groups, groups, strict=True):
        seat_source = Source(Transport.COLLECTIVE, planned.blocks, group, delta=planned.delta)
        for rank, seat in enumerate(planned.seats, start=1):
            sources[seat.name] = (*sources[seat.name], replace(seat_source, rank=rank))
    return sources


async def _end_together(tasks: Sequence[asyncio.Task[Any]], timeout: float) -> bool:
    """One that fails ends them all. False when time ran out."""
    if not tasks:
        return True
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    _, pending = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
    in_time = loop.time() < deadline
    await _end(list(pending), SETTLE_SECONDS if in_time else 0.0)
    return in_time


async def _end(tasks: Sequence[asyncio.Task[Any]], timeout: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


def _judge(
    found: _Round,
    member: Member,
    task: asyncio.Task[Staged],
    target: Target,
    sources: Sequence[Source],
    may_be_a_victim: bool,
) -> None:
    version = target.version
    if task.cancelled():
        silent = f"no answer to stage {version.version} in time"
        (found.suspects if may_be_a_victim else found.lost)[member] = silent
    elif isinstance(error := task.exception(), StaleEpochError):
        raise error  # it is the controller that is out of date, not the replica
    elif isinstance(error, TransferError | DeadlineError):
        found.suspects[member] = f"stage {version.version}: {error}"
    elif isinstance(error, OutOfOrderError) and any(source.delta for source in sources):
        found.suspects[member] = f"the delta was refused: {error}"
    elif isinstance(error, TrimaranError):
        found.lost[member] = f"stage {version.version}: {error}"
    elif error is not None:
        raise error
    elif (staged := task.result()).root != version.root:
        found.suspects[member] = f"computed root {staged.root} instead of {version.root}"
    elif staged.num_blocks != target.manifest.num_blocks:
        found.lost[member] = f"holds {staged.num_blocks} of {target.manifest.num_blocks} blocks"
    else:
        found.staged[member] = staged


def _failed(task: asyncio.Task[Any]) -> bool:
    return not task.done() or task.cancelled() or task.exception() is not None


def _raise_if_a_sender_is_gone(
    sends: Iterable[asyncio.Task[int]], found: _Round, timeout: float
) -> None:
    for send in sends:
        if send.cancelled():
            if not found.staged and not found.lost:  # nobody else can be to blame
                raise DeadlineError(f"the trainer did not end its send within {timeout:g} s")
        elif isinstance(error := send.exception(), TransferError | DeadlineError):
            logger.info("a send broke: %s", error)
        elif error is not None:
            raise error


def _log_relay(target: Target, found: _Round) -> None:
    logger.warning(
        "version %s: transfer broken (%s); %s go on by relay",
        target.version.version,
        "; ".join(f"{m.name}: {why}" for m, why in (found.lost | found.suspects).items()),
        ", ".join(member.name for member in found.suspects),
    )
