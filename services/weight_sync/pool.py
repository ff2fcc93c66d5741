"""The replicas of a run: who is in the pool, and how it is spoken to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from services.weight_sync.ledger import Ledger
from services.weight_sync.members import Member, Members
from services.weight_sync.staging import Rollout
from trimaran.errors import TrimaranError
from trimaran.types import Caller, PolicyVersion, Replica, VersionId

logger = logging.getLogger(__name__)


class Pool:
    def __init__(
        self,
        members: Members,
        ledger: Ledger,
        connect: Callable[[Replica, Caller], Rollout],
    ) -> None:
        self.members = members
        self._ledger = ledger
        self._connect = connect
        self._changed = asyncio.Event()
        self._aborts: set[asyncio.Task[None]] = set()

    async def register(self, replica: Replica) -> Member:
        member = self.members.register(replica)
        await self._note_change()
        return member

    async def exclude(self, failed: Mapping[Member, str]) -> None:
        """They leave routing."""
        for member, reason in failed.items():
            logger.warning("%s is not routable: %s", member.name, reason)
            self.members.mark_failed(member, reason)
        await self._note_change()

    async def commit(
        self, caller: Caller, live: PolicyVersion, members: Sequence[Member], timeout: float
    ) -> list[float]:
        """Takes the staged version live on each; returns the pauses, in seconds, of those that followed."""
        async with self.connected(caller, members) as rollouts:
            answers = await asyncio.gather(
                *(rollouts[member.name].commit_weights(live, timeout) for member in members),
                return_exceptions=True,
            )
        pauses: list[float] = []
        failed: dict[Member, str] = {}
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, TrimaranError):
                failed[member] = f"commit {live.version}: {answer}"
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self.members.mark_live(member, live.version)
                pauses.append(answer)
        await self.exclude(failed)
        return pauses

    def abort(self, caller: Caller, members: Sequence[Member], version: VersionId) -> None:
        """Told, not waited for: a replica that is gone must not hold up the others."""
        for member in members:
            task = asyncio.create_task(self._abort(caller, member, version))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _abort(self, caller: Caller, member: Member, version: VersionId) -> None:
        try:
            async with self.connected(caller, [member]) as rollouts:
                await rollouts[member.name].abort_weights(version)
        except TrimaranError as error:
            logger.info("%s could not be told to abort %s: %s", member.name, version, error)

    @asynccontextmanager
    async def connected(
        self, caller: Caller, members: Sequence[Member]
    ) -> AsyncIterator[dict[str, Rollout]]:
        """Clients by name. Fresh ones, so that no connection to a former incarnation is left."""
        async with AsyncExitStack() as stack:
            rollouts: dict[str, Rollout] = {}
            for member in members:
                rollout = rollouts[member.name] = self._connect(member.replica, caller)
                stack.push_async_callback(rollout.close)
            yield rollouts

    async def wait_for_change(self, timeout: float) -> None:
        """Returns after a registration, a commit or a fault, or after `timeout` seconds."""
        self._changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout)

    async def close(self) -> None:
        for task in self._aborts:
            task.cancel()
        await asyncio.gather(*self._aborts, return_exceptions=True)

    async def _note_change(self) -> None:
        await self._ledger.save_members(self.members)
        self._changed.set()
