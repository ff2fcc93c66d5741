"""A replica that registers, gives signs of life, and registers again with a weight sync that forgot it."""

from __future__ import annotations

import asyncio
import math

import pytest

from services.rollout import registration
from tests.rollout.replicas import free_ports
from trimaran.clients import Registration
from trimaran.config import parse_config
from trimaran.errors import DeadlineError
from trimaran.trust.access import NO_TRUST
from trimaran.types import Caller, Peer, PolicyVersion, Replica, VersionId
from trimaran.v1 import weight_sync_pb2, weight_sync_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc

REPLICA = Replica("rollout-0", "127.0.0.1:1")
PEER = Peer("127.0.0.1:2", "secret", "this-host")
LIVE = PolicyVersion("run", VersionId(0, 3), "a" * 32)


class WeightSync(weight_sync_pb2_grpc.WeightSyncServiceServicer):
    def __init__(self, events: asyncio.Queue) -> None:
        self.events = events
        self.incarnation = 0

    async def RegisterReplica(self, request, context):
        self.incarnation += 1
        assert (wire.decode_replica(request.replica), wire.decode_peer(request.peer)) == (
            REPLICA,
            PEER,
        )
        self.events.put_nowait(f"registered {request.run_id}")
        return weight_sync_pb2.RegisterReplicaResponse(
            incarnation=self.incarnation, heartbeat_seconds=0.01
        )

    async def Heartbeat(self, request, context):
        live = wire.decode_policy(request.live) if request.HasField("live") else None
        self.events.put_nowait((request.name, request.incarnation, live))
        return weight_sync_pb2.HeartbeatResponse(known=request.incarnation == self.incarnation)

    def service(self):
        add = weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server
        return rpc.service(weight_sync_pb2.DESCRIPTOR, add, self)


def config(start_timeout: float):
    return parse_config(
        {
            "model": {"path": "unused"},
            "data": {"train": "unused.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "start_timeout": start_timeout,
        }
    )


def run(body, start_timeout: float = 30):
    async def main():
        (port,) = free_ports(1)
        events: asyncio.Queue = asyncio.Queue()
        server = rpc.Server(f"127.0.0.1:{port}", [WeightSync(events).service()])
        staying = asyncio.create_task(
            registration.stay_registered(
                config(start_timeout),
                f"127.0.0.1:{port}",
                Caller("run", 0),
                REPLICA,
                PEER,
                lambda: LIVE,
                0.02,
            )
        )
        try:
            await asyncio.wait_for(body(server, events, staying, port), 30)
        finally:
            staying.cancel()
            await asyncio.gather(staying, return_exceptions=True)
            await server.stop()

    asyncio.run(main())


async def next_beat(events, incarnation: int) -> None:
    while (await events.get()) != ("rollout-0", incarnation, LIVE):
        pass


def test_it_waits_for_weight_sync_and_then_gives_signs_of_life_with_what_it_holds():
    async def body(server, events, staying, port):
        await asyncio.sleep(0.1)
        await server.start()
        assert await events.get() == "registered run"
        for _ in range(3):
            assert await events.get() == ("rollout-0", 1, LIVE)

    run(body)


def test_a_weight_sync_that_forgot_it_gets_a_fresh_registration():
    async def body(server, events, staying, port):
        await server.start()
        await next_beat(events, 1)
        await server.stop()
        forgetful = WeightSync(events)
        forgetful.incarnation = 6
        again = rpc.Server(f"127.0.0.1:{port}", [forgetful.service()])
        await again.start()
        try:
            await next_beat(events, 1)
            assert await events.get() == "registered run"
            await next_beat(events, 7)
        finally:
            await again.stop()

    run(body)


def test_an_absence_of_weight_sync_is_reported_once_and_ends_nothing(caplog):
    async def body(server, events, staying, port):
        await server.start()
        await next_beat(events, 1)
        await server.stop()
        await asyncio.sleep(0.3)
        assert not staying.done()

    with caplog.at_level("INFO"):
        run(body)
    assert sum("weight sync is away" in record.message for record in caplog.records) == 1


def test_the_first_registration_is_not_taken():
    async def body(server, events, staying, port):
        with pytest.raises(DeadlineError, match="did not take rollout-0 in 0.1 s"):
            await staying

    run(body, start_timeout=0.1)


class Leaving(WeightSync):
    """Lets the first calls wait, as while a publication is under way."""

    def __init__(self, num_slow: float) -> None:
        super().__init__(asyncio.Queue())
        self.num_slow = num_slow
        self.reported: list[tuple[str, int]] = []

    async def DeregisterReplica(self, request, context):
        self.reported.append((request.name, request.incarnation))
        if len(self.reported) <= self.num_slow:
            await asyncio.Event().wait()
        return weight_sync_pb2.DeregisterReplicaResponse()


def leave(num_slow: float, stop_behind: int | None = None) -> tuple[list[tuple[str, int]], float]:
    """What weight sync hears, and how long the replica waited. `stop_behind`: weight sync ends as
    soon as it has heard it so often."""

    async def main():
        (port,) = free_ports(1)
        service = Leaving(num_slow)
        server = rpc.Server(f"127.0.0.1:{port}", [service.service()])
        await server.start()
        began = asyncio.get_running_loop().time()
        leaving = asyncio.create_task(
            registration.deregister(
                server.address, Caller("run", 0), "rollout-2", Registration(3, 1.0), NO_TRUST
            )
        )
        while stop_behind is not None and len(service.reported) < stop_behind:
            await asyncio.sleep(0.01)
        if stop_behind is not None:
            await server.stop()
        await leaving
        seconds = asyncio.get_running_loop().time() - began
        await server.stop()
        return service.reported, seconds

    return asyncio.run(asyncio.wait_for(main(), 60))


def test_a_replica_that_leaves_waits_for_the_publication_under_way():
    reported, _ = leave(num_slow=2)
    assert reported == [("rollout-2", 3)] * 3


def test_a_replica_that_leaves_does_not_wait_for_a_weight_sync_that_ends_too():
    reported, seconds = leave(num_slow=math.inf, stop_behind=1)
    assert len(reported) <= 2
    tries = registration.DEREGISTER_TRIES * registration.DEREGISTER_SECONDS
    assert seconds < tries
