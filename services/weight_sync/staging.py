"""STAGE: bring one version into the host shadows of some replicas, whatever the others do.

        open group ──▶ stage on each replica ∥ send ──▶ compare roots
             ▲                     │
             └── new group ◀── some failed: those to blame leave, the rest try again

A collective does not say which of its members broke it, so blame is given by
what each answers: a replica that is gone or stays silent to the end is lost;
one that reports a broken transfer may be the victim of another and is tried
again, in a group of its own when nobody else was lost.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.weight_sync.members import Member
from trimaran.config import WeightSyncSection
from trimaran.errors import DeadlineError, TransferError, TrimaranError
from trimaran.types import Manifest, PolicyVersion, TransferGroup, VersionId

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""After the first failure of a transfer, how long the others may take to end theirs."""


class Trainer(Protocol):
    """What is asked of the trainer; `trimaran.clients.TrainerClient` is one."""

    async def get_policy_version(self, timeout: float) -> tuple[PolicyVersion, Manifest]: ...
    async def open_transfer(self, group: TransferGroup, timeout: float) -> TransferGroup: ...
    async def send_weights(
        self, version: VersionId, group_id: int, bucket_bytes: int, timeout: float
    ) -> int: ...
    async def close(self) -> None: ...


class Rollout(Protocol):
    """What is asked of a replica; `trimaran.clients.RolloutClient` is one."""

    async def stage_weights(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        group: TransferGroup,
        rank: int,
        bucket_bytes: int,
        timeout: float,
    ) -> str: ...
    async def commit_weights(self, version: PolicyVersion, timeout: float) -> float: ...
    async def abort_weights(self, version: VersionId) -> None: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class Outcome:
    staged: list[Member] = field(default_factory=list)
    """Hold the whole version, proven, in their shadows."""
    failed: dict[Member, str] = field(default_factory=dict)
    num_bytes: int = 0
    """Sent, over all groups."""


@dataclass(slots=True)
class _Attempt:
    staged: list[Member] = field(default_factory=list)
    lost: dict[Member, str] = field(default_factory=dict)
    suspects: dict[Member, str] = field(default_factory=dict)
    num_bytes: int = 0


class Stager:
    """Keeps the transfer group while it is healthy and its members stay the same."""

    def __init__(self, config: WeightSyncSection, next_group_id: Callable[[], Awaitable[int]]):
        """`next_group_id` never gives a number twice, not even after a restart."""
        self._config = config
        self._next_group_id = next_group_id
        self._group: TransferGroup | None = None
        self._group_keys: tuple[tuple[str, int], ...] = ()

    async def stage(
        self,
        trainer: Trainer,
        rollouts: Mapping[str, Rollout],
        members: Sequence[Member],
        version: PolicyVersion,
        manifest: Manifest,
    ) -> Outcome:
        """Ends within the stage timeout. Raises what the trainer raises when it cannot send at all."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.stage_timeout
        outcome = Outcome()
        rounds = [list(members)]
        while rounds:
            seats = rounds.pop(0)
            # Whoever is to blame for a failed round must leave time for those who are not.
            share = (deadline - loop.time()) / (len(rounds) + (2 if len(seats) > 1 else 1))
            if share <= 0:
                outcome.failed.update(dict.fromkeys(seats, "no time was left to stage it"))
                continue
            attempt = await self._attempt(trainer, rollouts, seats, version, manifest, share)
            outcome.staged += attempt.staged
            outcome.failed |= attempt.lost
            outcome.num_bytes += attempt.num_bytes
            again = list(attempt.suspects)
            if len(seats) == 1:
                outcome.failed |= attempt.suspects
            elif again:
                _log_retry(version, attempt)
                rounds = ([again] if attempt.lost else [[seat] for seat in again]) + rounds
        return outcome

    async def _attempt(
        self,
        trainer: Trainer,
        rollouts: Mapping[str, Rollout],
        seats: Sequence[Member],
        version: PolicyVersion,
        manifest: Manifest,
        timeout: float,
    ) -> _Attempt:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        bucket_bytes = self._config.bucket_mib << 20
        group = await self._open(trainer, seats)
        send = asyncio.ensure_future(
            trainer.send_weights(version.version, group.group_id, bucket_bytes, timeout)
        )
        stages = {
            seat: asyncio.ensure_future(
                rollouts[seat.name].stage_weights(
                    version, manifest, group, rank, bucket_bytes, timeout
                )
            )
            for rank, seat in enumerate(seats, start=1)
        }
        tasks = [send, *stages.values()]
        try:
            _, pending = await asyncio.wait(
                tasks, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION
            )
            in_time = loop.time() < deadline
            if pending:
                await asyncio.wait(pending, timeout=SETTLE_SECONDS)
        finally:
            self._group = None if any(_failed(task) for task in tasks) else group
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        _raise_if_trainer_is_gone(send, in_time, timeout)
        attempt = _Attempt(num_bytes=0 if _failed(send) else send.result())
        for seat, task in stages.items():
            self._judge(attempt, seat, task, version, in_time, timeout)
        return attempt

    def _judge(
        self,
        attempt: _Attempt,
        seat: Member,
        task: asyncio.Future[str],
        version: PolicyVersion,
        in_time: bool,
        timeout: float,
    ) -> None:
        if task.cancelled():
            silent = f"no answer to stage {version.version} within {timeout:g} s"
            (attempt.suspects if in_time else attempt.lost)[seat] = silent
        elif isinstance(error := task.exception(), TransferError):
            attempt.suspects[seat] = str(error)
        elif isinstance(error, TrimaranError):
            attempt.lost[seat] = f"stage {version.version}: {error}"
        elif error is not None:
            raise error
        elif task.result() != version.root:
            attempt.suspects[seat] = f"computed root {task.result()} instead of {version.root}"
        else:
            attempt.staged.append(seat)

    async def _open(self, trainer: Trainer, seats: Sequence[Member]) -> TransferGroup:
        keys = tuple(seat.key for seat in seats)
        if self._group is not None and self._group_keys == keys:
            try:
                return await trainer.open_transfer(self._group, self._config.join_timeout)
            except TransferError as error:
                logger.info("transfer group %d is not used again: %s", self._group.group_id, error)
        group_id = await self._next_group_id()
        group = TransferGroup(group_id, secrets.token_hex(16), len(seats) + 1, "")
        self._group, self._group_keys = None, keys
        return await trainer.open_transfer(group, self._config.join_timeout)


def _failed(task: asyncio.Future[Any]) -> bool:
    return not task.done() or task.cancelled() or task.exception() is not None


def _raise_if_trainer_is_gone(send: asyncio.Future[int], in_time: bool, timeout: float) -> None:
    if send.cancelled():
        if not in_time:
            raise DeadlineError(f"the trainer did not end its send within {timeout:g} s")
    elif (error := send.exception()) is not None and not isinstance(error, TransferError):
        raise error


def _log_retry(version: PolicyVersion, attempt: _Attempt) -> None:
    logger.warning(
        "version %s: transfer broken (%s); trying again with %s",
        version.version,
        "; ".join(f"{m.name}: {why}" for m, why in (attempt.lost | attempt.suspects).items()),
        ", ".join(member.name for member in attempt.suspects),
    )
