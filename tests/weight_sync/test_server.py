"""The service over gRPC, with a trainer and replicas behind it that move no bytes."""

import asyncio
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from services.weight_sync import server as weight_sync
from tests.trimaran.telemetry.test_exposition import values
from tests.weight_sync.fakes import CALLER, NUM_BLOCKS, RUN, World, peer_of, take_over, version_of
from trimaran.clients import MetricsClient, Registration, WeightSyncClient
from trimaran.config import parse_config
from trimaran.errors import InputError, StaleEpochError
from trimaran.run.context import RunContext
from trimaran.run.network import LOOPBACK
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


@asynccontextmanager
async def serving(folder):
    """The address of a weight sync that ends with the block."""
    address = LOOPBACK.free_address()
    service = weight_sync.serve(config_at(address), RunContext.in_folder(folder))
    running = asyncio.create_task(service)
    await wait_until_serving(address, 30)
    yield address
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.fixture
def folder(tmp_path):
    """Of a run whose first controller is CALLER."""
    folder = tmp_path / RUN
    folder.mkdir()
    assert asyncio.run(take_over(folder)) == CALLER
    return folder


async def test_the_service_speaks_our_types(monkeypatch, folder):
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
    async with serving(folder) as address:
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
            for ask in (other.list_versions(), other.verify_replicas([], 30)):
                with pytest.raises(InputError, match="not served here"):
                    await ask
        for epoch, error, reason in (
            (0, StaleEpochError, "was replaced by 1"),
            (2, InputError, "epoch 2 was never drawn"),
            (2**63, InputError, "no epoch is larger"),
        ):
            async with WeightSyncClient(address, Caller(RUN, epoch)) as client:
                with pytest.raises(error, match=reason):
                    await client.get_routing()
        async with WeightSyncClient(address, await take_over(folder)) as newer:
            assert (await newer.get_routing()).live


async def test_a_start_forgets_replicas_that_are_gone(folder):
    """Else a resumed run would first send its replicas to the peers of its former life."""
    with socket.create_server(("127.0.0.1", 0)) as relay:
        alive = replace(peer_of("b"), relay="{}:{}".format(*relay.getsockname()))
        for name, peer in (("a", peer_of("a")), ("b", alive)):
            async with serving(folder) as address, WeightSyncClient(address, CALLER) as client:
                await client.register_replica(Replica(name, "127.0.0.1:7001"), peer, 30)
        async with serving(folder) as address, WeightSyncClient(address, CALLER) as client:
            assert set((await client.get_routing()).unroutable) == {"b"}


def test_without_an_address_it_says_what_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"endpoints\.weight_sync"):
        asyncio.run(weight_sync.serve(config_at(None), RunContext.in_folder(tmp_path)))


def test_the_service_loads_no_torch():
    check = "import sys, services.weight_sync.server; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_replicas_that_may_not_make_tokens_are_counted_by_why() -> None:
    routing = Routing(None, (), {"a": "connection refused", "b": "", "c": "silent for 30 s"})
    assert weight_sync.count_unroutable(routing) == {"faulty": 2, "behind": 1}
