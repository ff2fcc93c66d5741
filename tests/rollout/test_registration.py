"""A replica that registers, gives signs of life, and registers again with a weight sync that forgot it."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager

import pytest

from services.rollout import registration
from tests.configs import configure
from tests.rollout.replicas import FakeWeightSync, free_addresses
from trimaran.clients import Registration
from trimaran.errors import DeadlineError
from trimaran.trust.access import NO_TRUST
from trimaran.types import Caller, Peer, PolicyVersion, Replica, VersionId
from trimaran.v1 import weight_sync_pb2
from trimaran.wire import messages as wire
from trimaran.wire import rpc

REPLICA = Replica("rollout-0", "127.0.0.1:1")
PEER = Peer("127.0.0.1:2", "secret", "this-host")
REGISTERED = "run", REPLICA, PEER
LIVE = PolicyVersion("run", VersionId(0, 3), "a" * 32)


class WeightSync(FakeWeightSync):
    async def Heartbeat(self, request, context):
        live = wire.decode_policy(request.live) if request.HasField("live") else None
        self.events.put_nowait((request.name, request.incarnation, live))
        return weight_sync_pb2.HeartbeatResponse(known=request.incarnation == self.incarnation)


@asynccontextmanager
async def staying_registered(start_timeout: float = 30):
    """A weight sync that has not started, what it hears, and the replica's task."""
    (address,) = free_addresses(1)
    weight_sync = WeightSync(heartbeat_seconds=0.01)
    server = rpc.Server(address, [weight_sync.service()])
    config = configure(start_timeout=start_timeout)
    staying = asyncio.create_task(
        registration.stay_registered(
            config, address, Caller("run", 0), REPLICA, PEER, lambda: LIVE, 0.02
        )
    )
    try:
        async with asyncio.timeout(30):
            yield server, weight_sync.events, staying
    finally:
        staying.cancel()
        await asyncio.gather(staying, return_exceptions=True)
        await server.stop()


async def next_beat(events, incarnation: int) -> None:
    while (await events.get()) != ("rollout-0", incarnation, LIVE):
        pass


async def test_it_waits_for_weight_sync_and_then_gives_signs_of_life_with_what_it_holds():
    async with staying_registered() as (server, events, _):
        await asyncio.sleep(0.1)
        await server.start()
        assert await events.get() == REGISTERED
        for _ in range(3):
            assert await events.get() == ("rollout-0", 1, LIVE)


async def test_a_weight_sync_that_forgot_it_gets_a_fresh_registration():
    async with staying_registered() as (server, events, _):
        await server.start()
        await next_beat(events, 1)
        await server.stop()
        forgetful = WeightSync(heartbeat_seconds=0.01)
        forgetful.incarnation, forgetful.events = 6, events
        again = rpc.Server(server.address, [forgetful.service()])
        await again.start()
        try:
            await next_beat(events, 1)
            assert await events.get() == REGISTERED
            await next_beat(events, 7)
        finally:
            await again.stop()


async def test_an_absence_of_weight_sync_is_reported_once_and_ends_nothing(caplog):
    with caplog.at_level("INFO"):
        async with staying_registered() as (server, events, staying):
            await server.start()
            await next_beat(events, 1)
            await server.stop()
            await asyncio.sleep(0.3)
            assert not staying.done()
    assert sum("weight sync is away" in record.message for record in caplog.records) == 1


async def test_the_first_registration_is_not_taken():
    async with staying_registered(start_timeout=0.1) as (_, _, staying):
        with pytest.raises(DeadlineError, match="did not take rollout-0 in 0.1 s"):
            await staying


class Leaving(FakeWeightSync):
    """Lets the first calls wait, as while a publication is under way."""

    def __init__(self, num_slow: float) -> None:
        super().__init__()
        self.num_slow = num_slow
        self.reported: list[tuple[str, int]] = []

    async def DeregisterReplica(self, request, context):
        self.reported.append((request.name, request.incarnation))
        if len(self.reported) <= self.num_slow:
            await asyncio.Event().wait()
        return weight_sync_pb2.DeregisterReplicaResponse()


async def leave(num_slow: float, stop_behind: float = math.inf) -> list[tuple[str, int]]:
    """What weight sync hears, which ends as soon as it has heard it `stop_behind` times."""
    service = Leaving(num_slow)
    server = rpc.Server("127.0.0.1:0", [service.service()])
    await server.start()
    leaving = asyncio.create_task(
        registration.deregister(
            server.address, Caller("run", 0), "rollout-2", Registration(3, 1.0), NO_TRUST
        )
    )
    while len(service.reported) < stop_behind and not leaving.done():
        await asyncio.sleep(0.01)
    await server.stop()
    await leaving
    return service.reported


async def test_a_replica_that_leaves_waits_for_the_publication_under_way():
    assert await leave(num_slow=2) == [("rollout-2", 3)] * 3


async def test_a_replica_that_leaves_does_not_wait_for_a_weight_sync_that_ends_too():
    async with asyncio.timeout(registration.DEREGISTER_TRIES * registration.DEREGISTER_SECONDS):
        assert len(await leave(num_slow=math.inf, stop_behind=1)) <= 2
