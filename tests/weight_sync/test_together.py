"""Coordinator, sender and receivers together: real tensors over gloo, in threads of one process."""

import asyncio
from dataclasses import dataclass

import pytest
import torch

from services.weight_sync import staging
from services.weight_sync.receiver import WeightReceiver
from services.weight_sync.sender import WeightSender
from services.weight_sync.snapshot import take_snapshot
from tests.weight_sync.fakes import CALLER, RUN, World
from tests.weight_sync.test_coordinator import names, running, until
from trimaran.device import Device
from trimaran.errors import UnavailableError
from trimaran.types import PolicyVersion, Replica, VersionId, VersionState

CPU = Device("cpu", "gloo")


class RealTrainer:
    def __init__(self):
        self.sender = WeightSender(CPU)
        self.step = 0

    def train(self):
        self.step += 1
        weight = torch.full((300, 100), float(self.step))
        self.snapshot = take_snapshot([("w", weight.to(torch.bfloat16))])
        root = self.snapshot.manifest.root
        self.version = PolicyVersion(RUN, VersionId(0, self.step), root, VersionState.STAGING)
        return self.version

    async def get_policy_version(self, timeout):
        return self.version, self.snapshot.manifest

    async def open_transfer(self, group, timeout):
        return await asyncio.to_thread(self.sender.open, group, timeout)

    async def send_weights(self, version, group_id, bucket_bytes, timeout):
        return await asyncio.to_thread(
            self.sender.send, self.snapshot, group_id, bucket_bytes, timeout
        )

    async def close(self):
        pass


@dataclass
class RealReplica:
    receiver: WeightReceiver
    dies_when_asked: bool = False
    weight: float = 0.0

    async def stage_weights(self, *arguments):
        if self.dies_when_asked:
            raise UnavailableError("connection reset")
        return await asyncio.to_thread(self.receiver.stage, *arguments)

    async def commit_weights(self, version, timeout):
        staged = self.receiver.staged
        assert staged is not None and staged.version.root == version.root
        self.weight = dict(staged.shadow.tensors())["w"].float().mean().item()
        del staged
        await self.abort_weights(version.version)
        return 0.0

    async def abort_weights(self, version):
        await asyncio.to_thread(self.receiver.discard, version)

    async def close(self):
        pass


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(staging, "SETTLE_SECONDS", 0.2)
    world = World()
    trainer = RealTrainer()
    world.replicas = {name: RealReplica(WeightReceiver(CPU)) for name in "abc"}
    world.connect_trainer = lambda caller: trainer
    world.connect_rollout = lambda replica, caller: world.replicas[replica.name]
    world.real_trainer = trainer
    yield world
    trainer.sender.close()
    for replica in world.replicas.values():
        replica.receiver.close()


def test_survivors_finish_the_version_and_the_lost_one_returns(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            for name in "abc":
                await coordinator.register(RUN, Replica(name, f"127.0.0.1:{name}"))
            routing, metrics = await coordinator.publish(CALLER, world.real_trainer.train())
            assert len(routing.routable) == 3
            assert metrics["weight_sync/bytes"] == 60_032  # 60,000 up to the next cache line
            world.replicas["b"].dies_when_asked = True
            await coordinator.publish(CALLER, world.real_trainer.train())
            assert names(coordinator) == ["a", "c"]
            world.replicas["b"].dies_when_asked = False
            await until(lambda: names(coordinator) == ["a", "b", "c"])
            await coordinator.publish(CALLER, world.real_trainer.train())

    asyncio.run(scenario())
    assert {replica.weight for replica in world.replicas.values()} == {3.0}
