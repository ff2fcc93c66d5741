"""Where a driven run stands: its version, its epoch, and the moves that a controller makes.

Every wait here has an end; one that is reached is a hang, and fails the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from tests.faults import orders
from tests.faults.generation import Generation
from tests.faults.house import WEIGHT_SYNC, House
from tests.faults.processes import until
from trimaran.clients import TrainerClient, WeightSyncClient
from trimaran.errors import DeadlineError, TrimaranError, UnavailableError
from trimaran.types import (
    Caller,
    Group,
    PolicyVersion,
    Proof,
    Routing,
    Score,
    ScoredGroup,
    TrainingBatch,
)

T = TypeVar("T")

RECOVERY_SECONDS = 60.0
"""For everything that died or froze to be back; an operator would be called then."""
MARGIN_SECONDS = 15.0
"""Of a loaded machine, on top of what the configuration's deadlines add up to."""
CALL_SECONDS = 20.0
GROUPS_SECONDS = 40.0


def replica_of(maker: str) -> str:
    """A replica that was mended makes its tokens as name~1, name~2, …"""
    return maker.partition("~")[0]


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass(slots=True)
class Stand:
    house: House
    generation: Generation
    caller: Caller
    version: PolicyVersion | None = None
    """What the trainer holds and the replicas are to take."""
    lineage: int = 0
    num_trained: int = 0
    """Tokens."""
    num_refused: int = 0
    """Groups without a good proof, which were made again."""
    hangs: list[str] = field(default_factory=list)

    @property
    def publish_seconds(self) -> float:
        section = self.house.config.weight_sync
        return (
            2 * section.join_timeout
            + section.stage_timeout
            + section.commit_timeout
            + section.prove_timeout
            + MARGIN_SECONDS
        )

    @property
    def weight_sync_address(self) -> str:
        address = self.house.config.endpoints.weight_sync
        assert address
        return address

    def weight_sync(self) -> WeightSyncClient:
        return WeightSyncClient(self.weight_sync_address, self.caller)

    def trainer(self, rank: int = 0) -> TrainerClient:
        return TrainerClient(self.house.config.endpoints.trainer[rank], self.caller)

    async def within(self, seconds: float, work: Awaitable[T], what: str) -> T:
        """Raises Broken when it does not end in time: a hang."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError as error:
            if isinstance(error, TrimaranError):
                raise
            self.hangs.append(f"{what}: no end after {seconds:g} s")
            raise Broken(self.hangs[-1]) from None

    async def start(self) -> None:
        """The first version is the trainer's at step 0."""
        async with self.trainer() as client:
            self.version, _ = await client.get_policy_version(CALL_SECONDS)
        await self.recover()

    async def train(self) -> None:
        """One step on fresh groups, each of them proven; the trainer then holds the next version."""
        assert self.version
        step = self.version.version.step + 1
        groups, proofs = await self.proven_groups()
        for group in groups:
            if not self.generation.is_right(group):
                raise Broken(f"step {step} trains tokens that no proven weights have made")
            self.num_trained += sum(len(one.token_ids_T) for one in group.completions_G)
        scored = tuple(
            ScoredGroup(group, tuple(Score(float(i % 2)) for i in range(len(group.completions_G))))
            for group in groups
        )
        self.generation.oracle.learn(step)
        async with self.trainer() as client:
            answer = await client.train_batch(
                TrainingBatch(step, scored), CALL_SECONDS, self.lineage, proofs
            )
            await client.save_checkpoint(step, CALL_SECONDS)
        self.version = answer.version

    async def proven_groups(self) -> tuple[list[Group], list[Proof]]:
        """As a controller does: a group without a good proof is made again."""
        count = self.house.config.run.groups_per_step
        deadline = time.monotonic() + GROUPS_SECONDS
        groups: list[Group] = []
        known: dict[tuple, Proof] = {}
        while len(groups) < count:
            left = deadline - time.monotonic()
            try:
                fresh = await self.generation.next_groups(count - len(groups), left)
            except TimeoutError:
                raise Broken(f"no group with a proof came within {GROUPS_SECONDS:g} s") from None
            makers = {maker for group in [*groups, *fresh] for maker in group.makers}
            async with self.weight_sync() as client:
                proofs = await client.list_proofs(sorted({version for version, _ in makers}))
            known = {(proof.version, proof.replica): proof for proof in proofs}
            good = {maker for maker in makers if maker in known and not known[maker].fault}
            proven = [group for group in [*groups, *fresh] if group.makers <= good]
            self.num_refused += len(groups) + len(fresh) - len(proven)
            groups = proven
        makers = {maker for group in groups for maker in group.makers}
        return groups, [known[maker] for maker in sorted(makers)]

    async def publish(self) -> TrimaranError | None:
        """The error with which it ended, if it did. A call that only its own deadline ends is a hang."""
        assert self.version
        started = time.monotonic()
        async with self.weight_sync() as client:
            try:
                await self.within(
                    self.publish_seconds + MARGIN_SECONDS,
                    client.publish_version(self.version, self.publish_seconds),
                    f"publish {self.version.version}",
                )
            except TrimaranError as error:
                seconds = time.monotonic() - started
                if seconds >= self.publish_seconds and isinstance(error, DeadlineError):
                    self.hangs.append(f"publish {self.version.version}: {error}")
                    raise Broken(self.hangs[-1]) from None
                return error
        return None

    async def routing(self) -> Routing:
        async with self.weight_sync() as client:
            return await client.get_routing()

    async def reload_trainers(self) -> None:
        """As a resumed run does: all ranks anew from their checkpoint, in a lineage of their own."""
        assert self.version
        await self.house.start_trainers()
        self.lineage += 1
        step = self.version.version.step
        async with self.trainer() as client:
            held, _ = await client.get_policy_version(CALL_SECONDS)
            if held.version.step == step and step:
                answer = await client.train_batch(
                    TrainingBatch(step, ()), CALL_SECONDS, self.lineage, ()
                )
                held = answer.version
        self.version = held

    async def recover(self) -> float:
        """Everything is started again that is dead, and the version is published until it is live
        on every replica that runs. Returns the seconds until all were proven."""
        assert self.version
        started = time.monotonic()
        errors: list[str] = []
        while True:
            if time.monotonic() - started > RECOVERY_SECONDS:
                raise Broken(
                    f"not all replicas hold {self.version.version} after {RECOVERY_SECONDS:g} s:"
                    f" {'; '.join(errors[-3:])}"
                )
            self._revive()
            if not all(map(self.house.is_alive, self.house.trainers)):
                await self.reload_trainers()
            if (error := await self.publish()) is not None:
                errors.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)
                continue
            try:
                routing = await self._until_all_routable()
            except (UnavailableError, DeadlineError, TimeoutError) as error:
                errors.append(f"{type(error).__name__}: {error}")
                continue
            assert routing.live
            break
        await self.check_loaded()
        return time.monotonic() - started

    def _revive(self) -> None:
        for name in [*self.house.replicas[:-1], WEIGHT_SYNC]:
            if not self.house.is_alive(name):
                self.house.start(name)
        for child in self.house.children.values():
            if child.alive and child.state == "T":
                child.thaw()

    async def _until_all_routable(self) -> Routing:
        assert self.version
        deadline = time.monotonic() + RECOVERY_SECONDS / 3
        while True:
            routing = await self.routing()
            live = routing.live
            if live is None or (live.version, live.root) != (
                self.version.version,
                self.version.root,
            ):
                raise UnavailableError(f"{live and live.version} is live")
            names = {replica.name for replica in routing.routable}
            if set(self.house.alive) <= names:
                return routing
            if time.monotonic() > deadline:
                raise TimeoutError(f"not routable: {routing.describe_unroutable()}")
            await asyncio.sleep(0.05)

    async def check_loaded(self) -> None:
        """A full read-back of every replica. Raises Broken for a block that differs.

        A replica may leave routing in this very moment, as one does whose sample was found to
        be bad: then it is waited for and asked again.
        """
        assert self.version
        deadline = time.monotonic() + RECOVERY_SECONDS
        while True:
            names = set(self.house.alive)
            async with self.weight_sync() as client:
                proofs, _ = await client.verify_replicas(sorted(names), CALL_SECONDS)
            good = {
                replica_of(proof.replica)
                for proof in proofs
                if not proof.fault
                and (proof.version, proof.root) == (self.version.version, self.version.root)
                and proof.num_loaded == proof.num_blocks > 0
            }
            if names <= good:
                return
            if time.monotonic() > deadline:
                raise Broken(f"not proven at {self.version.version}: {sorted(names - good)}")
            try:
                await self._until_all_routable()
            except (UnavailableError, DeadlineError, TimeoutError):
                await asyncio.sleep(0.1)

    async def maker(self, name: str) -> str:
        """What the replica's tokens are stamped with, as its newest proof says."""
        assert self.version
        async with self.weight_sync() as client:
            proofs = await client.list_proofs([self.version.version])
        makers = [proof.replica for proof in proofs if replica_of(proof.replica) == name]
        return max(makers, key=lambda maker: int(maker.partition("~")[2] or 0), default=name)

    async def until_stopped(self, name: str, task: asyncio.Task | None, seconds: float) -> bool:
        """Whether the process has stopped where it was ordered to, before the task ended."""
        child = self.house.children[name]
        try:
            await until(
                lambda: child.state in ("T", "") or (task is not None and task.done()),
                seconds,
                f"{name} to get there",
            )
        except TimeoutError:
            return False
        return child.state == "T"

    async def until_carried_out(self, name: str, seconds: float) -> None:
        folder = self.house.run_folder
        await until(lambda: not orders.is_open(folder, name), seconds, f"the order to {name}")
