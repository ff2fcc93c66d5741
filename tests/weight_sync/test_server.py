"""The service over gRPC, with a trainer and replicas behind it that move no bytes."""

import asyncio
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from services.weight_sync import server as weight_sync
from tests.trimaran.telemetry.test_exposition import values
from tests.weight_sync.fakes import CALLER, NUM_BLOCKS, RUN, World, peer_of, take_over, version_of
from trimaran.clients import MetricsClient, Registration, WeightSyncClient
from trimaran.config import parse_config
from trimaran.errors import InputError, StaleEpochError
from trimaran.run.context import RunContext
from trimaran.types import Caller, Proof, Replica, Routing, VersionId
from trimaran.wire.rpc import wait_until_serving


def config_at(address: str | None):
    return parse_config(
        {
            "model": {"path": "model"},
            "data": {"train": "train.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "trainer": {"tensor_parallel": 2, "data_parallel": 2},
            "endpoints": {
                "weight_sync": address,
                "trainer": [f"127.0.0.1:{rank + 1}" for rank in range(4)],
            },
        }
    )


def test_the_service_speaks_our_types(monkeypatch, tmp_path, unused_port):
    world = World(shares=(((0, 3),), ((3, 5),)))
    monkeypatch.setattr(
        weight_sync,
        "TrainerClient",
        lambda place, caller, trust: world.connect_senders(caller)[int(place.address[-1]) - 1],
    )
    monkeypatch.setattr(
        weight_sync,
        "RolloutClient",
        lambda address, caller, trust: world.connect_rollout(
            Replica(address.rpartition(":")[2], address), caller
        ),
    )
    world.add("7001")
    address = f"127.0.0.1:{unused_port}"
    folder = tmp_path / RUN
    folder.mkdir()
    assert asyncio.run(take_over(folder)) == CALLER

    async def scenario():
        serving = asyncio.create_task(
            weight_sync.serve(config_at(address), RunContext.in_folder(folder))
        )
        await wait_until_serving(address, 30)
        async with WeightSyncClient(address, CALLER) as client:
            replica, peer = Replica("7001", "127.0.0.1:7001"), peer_of("7001")
            registration = await client.register_replica(replica, peer, 30)
            assert registration == Registration(1, 6.0)
            with pytest.raises(InputError, match="loopback"):
                await client.register_replica(Replica("b", "10.0.0.1:7001"), peer, 30)
            assert await client.heartbeat("7001", 1, None, 30)
            assert not await client.heartbeat("7001", 2, None, 30)
            routing, metrics = await client.publish_version(version_of(1), 30)
            assert routing.live and routing.live.version == VersionId(0, 1)
            assert metrics["weight_sync/replicas"] == 1
            assert await client.get_routing() == routing
            async with MetricsClient(address) as process:
                reported = values(await process.get_metrics())
            assert reported["trimaran_weight_sync_live_step",] == 1
            assert reported["trimaran_weight_sync_live_lineage",] == 0
            assert reported["trimaran_weight_sync_routable_replicas",] == 1
            assert reported["trimaran_weight_sync_unroutable_replicas", "faulty"] == 0
            pause = metrics["weight_sync/pause/seconds"]
            assert reported["trimaran_weight_sync_pause_seconds",] == pytest.approx(pause)
            assert await client.heartbeat("7001", 1, routing.live, 30)
            with pytest.raises(InputError, match="known: 7001"):
                await client.report_replica("b", "gone")
            await client.report_replica("7001", "stream broke")
            while (await client.get_routing()).unroutable:
                await asyncio.sleep(0.05)
            [proof] = await client.list_proofs([VersionId(0, 1)])
            assert proof == Proof(
                VersionId(0, 1), "7001", version_of(1).root, NUM_BLOCKS, NUM_BLOCKS
            )
            assert await client.list_faults() == ()
            [record] = await client.list_versions()
            assert record.policy == routing.live and record.proofs == (proof,)
            assert await client.verify_replicas([], 30) == ((proof,), {})
            with pytest.raises(InputError, match="known: 7001"):
                await client.verify_replicas(["b"], 30)
        async with WeightSyncClient(address, Caller("other", 1)) as other:
            with pytest.raises(InputError, match="not served here"):
                await other.list_versions()
            with pytest.raises(InputError, match="not served here"):
                await other.verify_replicas([], 30)
        async with WeightSyncClient(address, Caller(RUN, 0)) as former:
            with pytest.raises(StaleEpochError):
                await former.get_routing()
        async with WeightSyncClient(address, Caller(RUN, 2**63)) as stranger:
            with pytest.raises(InputError, match="no epoch is larger"):
                await stranger.get_routing()
        async with WeightSyncClient(address, Caller(RUN, 2)) as early:
            with pytest.raises(InputError, match="epoch 2 was never drawn"):
                await early.get_routing()
        async with WeightSyncClient(address, await take_over(folder)) as newer:
            assert (await newer.get_routing()).live
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(scenario())


def test_a_start_forgets_replicas_that_are_gone(tmp_path, unused_port):
    """Else a resumed run would first send its replicas to the peers of its former life."""
    address = f"127.0.0.1:{unused_port}"
    folder = tmp_path / RUN
    folder.mkdir()
    asyncio.run(take_over(folder))

    async def life(body):
        serving = asyncio.create_task(
            weight_sync.serve(config_at(address), RunContext.in_folder(folder))
        )
        await wait_until_serving(address, 30)
        async with WeightSyncClient(address, CALLER) as client:
            found = await body(client)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        return found

    async def scenario():
        with socket.create_server(("127.0.0.1", 0)) as relay:
            alive = replace(peer_of("b"), relay="{}:{}".format(*relay.getsockname()))
            for name, peer in (("a", peer_of("a")), ("b", alive)):
                replica = Replica(name, "127.0.0.1:7001")
                await life(lambda client, r=replica, p=peer: client.register_replica(r, p, 30))
            routing = await life(lambda client: client.get_routing())
        assert set(routing.unroutable) == {"b"}

    asyncio.run(scenario())


def test_without_an_address_it_says_what_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"endpoints\.weight_sync"):
        asyncio.run(weight_sync.serve(config_at(None), RunContext.in_folder(tmp_path)))


@pytest.fixture
def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_the_service_loads_no_torch():
    check = "import sys, services.weight_sync.server; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_replicas_that_may_not_make_tokens_are_counted_by_why() -> None:
    routing = Routing(None, (), {"a": "connection refused", "b": "", "c": "silent for 30 s"})
    assert weight_sync.count_unroutable(routing) == {"faulty": 2, "behind": 1}
