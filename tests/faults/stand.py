"""Where a driven run stands, and what must be live there.

The controller is the real one; the driver only permits it one step after the
other. So between two of them nothing new is published, and what a fault has left
can be looked at. Every wait here has an end; one that is reached fails the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults import orders
from tests.faults.audit import Audit
from tests.faults.house import CONTROLLER, WEIGHT_SYNC, House
from tests.faults.oracle import Judge
from tests.faults.replaced import CALL_SECONDS, Broken
from trimaran.clients import TrainerClient, WeightSyncClient
from trimaran.errors import DeadlineError, UnavailableError
from trimaran.types import Caller, Routing
from trimaran.wire import rpc

RECOVERY_SECONDS = 60.0
"""For everything that died or froze to be back; an operator would be called then."""
BATCH_SECONDS = 40.0
POLL_SECONDS = 0.05
LOOK_SECONDS = 0.5
AWAY = (UnavailableError, DeadlineError)
"""Weight sync is being restarted, or stands still."""


def replica_of(maker: str) -> str:
    """A replica that was fixed makes its tokens as name~1, name~2, …"""
    return maker.partition("~")[0]


@dataclass(slots=True)
class Stand:
    house: House
    judge: Judge
    audit: Audit
    step: int = 0
    """Up to which the controller may train, and publish."""
    may_end: bool = False
    """The fault that is being made may end the controller."""
    hangs: list[str] = field(default_factory=list)

    @property
    def caller(self) -> Caller:
        return Caller(self.house.run_folder.name, self.audit.epoch)

    @property
    def weight_sync_address(self) -> str:
        address = self.house.config.endpoints.weight_sync
        assert address
        return address

    def weight_sync(self) -> WeightSyncClient:
        return WeightSyncClient(self.weight_sync_address, self.caller)

    def trainer(self) -> TrainerClient:
        return TrainerClient(self.house.config.endpoints.trainer[0], self.caller)

    async def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """With a fresh look at the ledger each time. Raises Broken: a hang."""
        deadline = time.monotonic() + seconds
        while True:
            await self.audit.read()
            if condition():
                return
            if time.monotonic() > deadline:
                self.hangs.append(f"waited {seconds:g} s in vain for {what}")
                raise Broken(self.hangs[-1])
            await asyncio.sleep(POLL_SECONDS)

    async def start_controller(self, beside: bool = False) -> None:
        """Returns once it has taken over from the one before it."""
        before = self.audit.epoch
        self.house.start(CONTROLLER, beside)
        await self.until(lambda: self.audit.epoch > before, CALL_SECONDS, "a new controller")

    async def resume(self) -> None:
        """As `trimaran train --resume` does, but that replicas and weight sync go on."""
        if self.house.is_alive(CONTROLLER):
            self.house.children[CONTROLLER].kill()
        await self.house.start_trainers()
        await self.start_controller()

    async def open_step(self) -> None:
        """The controller has a proven batch; from here on it trains it, and publishes the version."""

        def has_batch_or_died() -> bool:
            return self.audit.consumed > self.step or not self.house.is_alive(CONTROLLER)

        await self.until(has_batch_or_died, BATCH_SECONDS, f"the batch of step {self.step + 1}")
        await self._check_controller()
        self.step += 1
        self.judge.oracle.learn(self.step)
        self.house.permit(self.step)

    async def until_stopped(self, name: str, seconds: float, until_over: bool = True) -> bool:
        """Whether the process stands where it was ordered to, before the publication was over."""
        folder, child = self.house.run_folder, self.house.children[name]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and child.alive:
            if not orders.is_open(folder, name):
                if child.stopped():
                    return True
            elif until_over:
                await self.audit.read()
                if self.audit.reported >= self.step:
                    return False
            await asyncio.sleep(POLL_SECONDS / 10)
        return False

    async def recover(self) -> float:
        """What is dead is started again, as `trimaran train` would. Returns the seconds until the
        version of the last step that the controller may make was live and proven everywhere."""
        started = time.monotonic()
        while True:
            self._revive()
            if not all(map(self.house.is_alive, [CONTROLLER, *self.house.trainers])):
                await self._check_controller()
                await self.resume()
            missing = await self._missing(self.step)
            if not missing:
                break
            if time.monotonic() - started > RECOVERY_SECONDS:
                raise Broken(f"not healed after {RECOVERY_SECONDS:g} s: {missing}")
            await asyncio.sleep(POLL_SECONDS)
        seconds = time.monotonic() - started
        await self.check_loaded(self.step)
        self.may_end = False
        return seconds

    async def check_left(self, step: int) -> None:
        """After a death of weight sync: this version is live, and nothing else is loaded anywhere,
        though no controller has spoken to it since."""
        await rpc.wait_until_serving(self.weight_sync_address, CALL_SECONDS)
        async with self.weight_sync() as client:
            records = await client.list_versions(1)
        newest = records[0].policy.version.step if records else "no version at all"
        if newest != step:
            raise Broken(f"weight sync recovered to {newest}; step {step} was committed")
        await self.until_served(step)
        await self.check_loaded(step)

    async def until_served(self, step: int) -> None:
        """By every replica that runs. Raises Broken."""
        deadline = time.monotonic() + RECOVERY_SECONDS / 2
        while missing := await self._missing(step):
            if time.monotonic() > deadline:
                raise Broken(f"step {step} was committed and is not served: {missing}")
            await asyncio.sleep(POLL_SECONDS)

    async def routing(self) -> Routing:
        await self.audit.read()
        async with self.weight_sync() as client:
            return await client.get_routing()

    async def check_loaded(self, step: int) -> None:
        """A full read-back of every replica. Raises Broken for a block that differs.

        A replica may leave routing in this very moment, as one does whose sample was found to
        be bad: then it is waited for and asked again.
        """
        deadline = time.monotonic() + RECOVERY_SECONDS
        while True:
            names = set(self.house.alive)
            async with self.weight_sync() as client:
                proofs, unroutable = await client.verify_replicas(sorted(names), CALL_SECONDS)
            good = {
                replica_of(proof.replica)
                for proof in proofs
                if not proof.fault
                and (proof.version.step, proof.root) == (step, self.audit.roots[step])
                and proof.num_loaded == proof.num_blocks > 0
            }
            if names <= good:
                return
            if time.monotonic() > deadline:
                raise Broken(f"not proven at step {step}: {sorted(names - good)} {unroutable}")
            await asyncio.sleep(2 * POLL_SECONDS)

    async def maker(self, name: str) -> str:
        """What the replica's tokens are stamped with, as its newest proof says."""
        async with self.weight_sync() as client:
            live = (await client.get_routing()).live
            assert live
            proofs = await client.list_proofs([live.version])
        makers = [proof.replica for proof in proofs if replica_of(proof.replica) == name]
        return max(makers, key=lambda maker: int(maker.partition("~")[2] or 0), default=name)

    def _revive(self) -> None:
        for name in [*self.house.replicas[:-1], WEIGHT_SYNC]:
            if not self.house.is_alive(name):
                self.house.start(name)
        for child in self.house.children.values():
            child.thaw()

    async def _check_controller(self) -> None:
        """It outlives whatever is done to a replica or to weight sync."""
        if not self.house.is_alive(CONTROLLER) and not self.may_end:
            raise Broken(f"the controller ended: {await self.audit.ended_with() or 'see its log'}")

    async def _missing(self, step: int) -> str:
        """Until every replica that runs is routable at this step's version; empty then."""
        try:
            routing = await self.routing()
        except AWAY as error:
            return str(error)
        live, root = routing.live, self.audit.roots.get(step)
        if live is None or (live.version.step, live.root) != (step, root):
            return f"{live and live.version} is live instead of step {step}"
        names = {replica.name for replica in routing.routable}
        if set(self.house.alive) <= names:
            return ""
        return routing.describe_unroutable() or "a replica has not registered"
