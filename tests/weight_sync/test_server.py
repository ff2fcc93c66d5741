"""The service over gRPC, with a trainer and replicas behind it that move no bytes."""

import asyncio
import socket
import subprocess
import sys

import pytest

from services.weight_sync import server as weight_sync
from tests.weight_sync.fakes import CALLER, RUN, World, version_of
from trimaran.clients import WeightSyncClient
from trimaran.config import parse_config
from trimaran.errors import InputError, StaleEpochError
from trimaran.rpc import wait_until_serving
from trimaran.types import Caller, Replica, VersionId


def config_at(address: str | None):
    return parse_config(
        {
            "model": {"path": "model"},
            "data": {"train": "train.jsonl"},
            "reward": {"rules": {"last_integer": 1.0}},
            "endpoints": {"weight_sync": address, "trainer": ["127.0.0.1:1"]},
        }
    )


def test_the_service_speaks_nouns(monkeypatch, tmp_path, unused_port):
    world = World()
    monkeypatch.setattr(
        weight_sync, "TrainerClient", lambda address, caller: world.connect_trainer(caller)
    )
    monkeypatch.setattr(
        weight_sync,
        "RolloutClient",
        lambda address, caller: world.connect_rollout(
            Replica(address.rpartition(":")[2], address), caller
        ),
    )
    world.add("7001")
    address = f"127.0.0.1:{unused_port}"
    folder = tmp_path / RUN
    folder.mkdir()

    async def scenario():
        serving = asyncio.create_task(weight_sync.serve(config_at(address), folder))
        await wait_until_serving(address, 30)
        async with WeightSyncClient(address, CALLER) as client:
            await client.register_replica(Replica("7001", "127.0.0.1:7001"), 30)
            with pytest.raises(InputError, match="loopback"):
                await client.register_replica(Replica("b", "10.0.0.1:7001"), 30)
            routing, metrics = await client.publish_version(version_of(1), 30)
            assert routing.live.version == VersionId(0, 1)
            assert metrics["weight_sync/replicas"] == 1
            assert await client.get_routing() == routing
            with pytest.raises(InputError, match="known: 7001"):
                await client.report_replica("b", "gone")
            await client.report_replica("7001", "stream broke")
            while (await client.get_routing()).unroutable:
                await asyncio.sleep(0.05)
        async with WeightSyncClient(address, Caller(RUN, 0)) as former:
            with pytest.raises(StaleEpochError):
                await former.get_routing()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(scenario())


def test_without_an_address_it_says_what_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"endpoints\.weight_sync"):
        asyncio.run(weight_sync.serve(config_at(None), tmp_path))


@pytest.fixture
def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_the_service_loads_no_torch():
    check = "import sys, services.weight_sync.server; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
