"""Coordinator, senders and receivers together: real tensors over gloo, shared memory and the relay."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from tests.weight_sync.ends import ALL, CPU, make_values, snapshot_of
from tests.weight_sync.fakes import CALLER, RUN, World
from tests.weight_sync.test_coordinator import names, running, until
from trimaran.config import WeightSyncSection
from trimaran.errors import OutOfOrderError, UnavailableError
from trimaran.types import Offer, PolicyVersion, Ranges, Replica, VersionId
from weights.delta import delta_changes
from weights.receiving.receiver import WeightReceiver
from weights.sending.sender import WeightSender
from weights.sending.snapshot import Snapshot
from weights.version.digest import digest_value
from weights.version.layout import numbers_of
from weights.version.manifest import list_blocks, list_digests

HALVES: tuple[Ranges, ...] = (((0, 4), (8, 9)), ((4, 8),))


@dataclass
class Training:
    """What the ranks agree on."""

    keep_delta: bool = False
    step: int = 0
    values: dict[str, torch.Tensor] = field(default_factory=lambda: make_values(0))

    def train(self, ranks: "list[RealRank]") -> PolicyVersion:
        """A step changes one element of each tensor that has any."""
        self.step += 1
        self.values = {name: value.clone() for name, value in self.values.items()}
        for value in self.values.values():
            value.view(-1)[:1] = self.step
        digests = dict(enumerate(list_digests(snapshot_of(self.values).manifest)))
        for rank in ranks:
            rank.take(digests)
        return self.version

    @property
    def version(self) -> PolicyVersion:
        root = snapshot_of(self.values).manifest.root
        return PolicyVersion(RUN, VersionId(0, self.step), root)


class RealRank:
    def __init__(self, training: Training, rank: int, ranges: Ranges, config: WeightSyncSection):
        self.training, self.ranges = training, ranges
        self.sender = WeightSender(CPU, rank, config)
        self.sender.start()
        self.snapshot: Snapshot | None = None
        self.num_sends = 0
        self.is_elsewhere = False

    def take(self, digests):
        self.sender.hold(None)
        snapshot = self.snapshot = snapshot_of(
            self.training.values,
            ranges=self.ranges,
            exchange=lambda own: digests,
            reuse=self.snapshot,
            keep_delta=self.training.keep_delta,
        )
        self.sender.hold(snapshot)

    async def get_policy_version(self, timeout):
        assert self.snapshot
        return self.training.version, self.snapshot.manifest

    async def get_offer(self, timeout):
        assert self.snapshot
        delta = self.snapshot.delta and self.snapshot.delta.describe(self.ranges)
        peer = self.sender.peer
        if self.is_elsewhere:
            peer = replace(peer, host="another machine")
        return self.training.version, Offer(peer, self.ranges, self.snapshot.path, delta)

    async def open_transfer(self, group, timeout):
        return await asyncio.to_thread(self.sender.open, group, timeout)

    async def send_weights(self, version, *reported):
        assert self.snapshot
        self.num_sends += 1
        return await asyncio.to_thread(self.sender.send, self.snapshot, *reported)

    async def close(self):
        pass


class RealReplica:
    """An engine that has loaded copies of its own."""

    def __init__(self, index: int, config: WeightSyncSection):
        self.receiver = WeightReceiver(CPU, index, config)
        self.receiver.start()
        self.dies_when_asked = False
        self.loaded: dict[str, torch.Tensor] = {}
        self.knows_changes = False
        self.live: PolicyVersion | None = None

    async def stage_weights(self, *arguments):
        if self.dies_when_asked:
            raise UnavailableError("connection reset")
        return await asyncio.to_thread(self.receiver.stage, *arguments)

    async def commit_weights(self, version, maker, timeout):
        staged = self.receiver.staged
        if staged is None or staged.version.root != version.root:
            raise OutOfOrderError(f"{version.version} is not staged")
        self.knows_changes = staged.shadow.changes is not None
        self.loaded = {name: value.clone() for name, value in staged.shadow.tensors()}
        self.manifest, self.live = staged.shadow.manifest, version
        await asyncio.to_thread(self.receiver.keep, version.version)
        return 0.0

    async def sleep(self, timeout):
        raise AssertionError("nobody shares devices here")

    async def abort_weights(self, version, attempt):
        await asyncio.to_thread(self.receiver.discard, version, attempt)

    async def read_back(self, version, blocks, timeout):
        if self.live is None or self.live.version != version:
            raise OutOfOrderError(f"{version} is not live")
        every = list_blocks(self.manifest.tensors)
        return tuple(self._digest(every[number]) for number in numbers_of(blocks))

    def _digest(self, block):
        value = self.loaded[block.tensor.name]
        piece = value.narrow(block.tensor.axis, block.start, block.stop - block.start)
        return digest_value(piece)

    async def close(self):
        pass


@dataclass
class Together:
    world: World
    training: Training
    ranks: list[RealRank]
    replicas: dict[str, RealReplica]

    async def register(self, coordinator, name):
        replica = Replica(name, f"127.0.0.1:{name}")
        await coordinator.register(RUN, replica, self.replicas[name].receiver.peer)

    async def publish(self, coordinator):
        return await coordinator.publish(CALLER, self.training.train(self.ranks))

    def check(self):
        """Every replica has loaded what the trainer holds, bit for bit."""
        for replica in self.replicas.values():
            for name, value in self.training.values.items():
                assert torch.equal(replica.loaded[name], value), name


@pytest.fixture
def make():
    ends = []

    def make(config, shares: tuple[Ranges, ...] = (ALL,), keep_delta=False) -> Together:
        training = Training(keep_delta)
        ranks = [RealRank(training, rank, share, config) for rank, share in enumerate(shares)]
        replicas = {name: RealReplica(index, config) for index, name in enumerate("abc")}
        ends.extend([*(rank.sender for rank in ranks), *(r.receiver for r in replicas.values())])
        world: Any = World()
        world.connect_senders = lambda caller: ranks
        world.connect_rollout = lambda replica, caller: replicas[replica.name]
        return Together(world, training, ranks, replicas)

    yield make
    for end in ends:
        end.close()


def config_of(transport, **options):
    return WeightSyncSection(transport=transport, stage_timeout=30, join_timeout=20, **options)


@pytest.mark.parametrize("shares", [(ALL,), HALVES], ids=["one sender", "two senders"])
@pytest.mark.parametrize("transport", ["auto", "collective", "relay"])
async def test_every_transport_brings_every_block(make, tmp_path, transport, shares):
    config = config_of(transport)
    together = make(config, shares)

    async with running(together.world, tmp_path, config, settle=0.2) as coordinator:
        for name in "abc":
            await together.register(coordinator, name)
        metrics = {}
        for _ in range(2):
            _, metrics = await together.publish(coordinator)
            await until(lambda: names(coordinator) == ["a", "b", "c"])
            together.check()
        way = "memory" if transport == "auto" else transport
        assert metrics[f"weight_sync/bytes/{way}"] == metrics["weight_sync/bytes"] > 0
        assert metrics["weight_sync/shared"] == 2 * (transport == "auto")
    assert all(rank.num_sends == 2 * (transport == "collective") for rank in together.ranks)


async def test_the_bytes_of_each_transport_are_booked_under_itself(make, tmp_path):
    """One sender shares memory with the replicas, the other is elsewhere: one stage, two ways. One
    replica takes it, and the others read it there."""
    config = config_of("auto")
    together = make(config, HALVES)
    near, far = together.ranks
    far.is_elsewhere = True
    metrics = {}

    async with running(together.world, tmp_path, config, settle=0.2) as coordinator:
        for name in "abc":
            await together.register(coordinator, name)
        metrics.update((await together.publish(coordinator))[1])
    for way, rank in (("memory", near), ("collective", far)):
        pieces = rank.snapshot.layout.pieces
        expected = sum(piece.block.num_bytes for piece in pieces)
        assert metrics[f"weight_sync/bytes/{way}"] == expected > 0
    assert metrics["weight_sync/relayed"] == 0


async def test_survivors_finish_the_version_and_the_lost_one_returns(make, tmp_path):
    config = config_of("collective")
    together = make(config)

    async with running(together.world, tmp_path, config, settle=0.2) as coordinator:
        for name in "abc":
            await together.register(coordinator, name)
        await together.publish(coordinator)
        await until(lambda: names(coordinator) == ["a", "b", "c"])
        together.replicas["b"].dies_when_asked = True
        await together.publish(coordinator)
        assert names(coordinator) == ["a", "c"]
        together.replicas["b"].dies_when_asked = False
        await until(lambda: names(coordinator) == ["a", "b", "c"])
        together.check()
        await together.publish(coordinator)
    together.check()


async def test_a_wrong_bit_in_an_engine_is_found_and_fixed(make, tmp_path):
    config = config_of("auto", sample_share=1.0)
    together = make(config)

    async with running(together.world, tmp_path, config, settle=0.2) as coordinator:
        for name in "abc":
            await together.register(coordinator, name)
        await together.publish(coordinator)
        await until(lambda: names(coordinator) == ["a", "b", "c"])
        together.replicas["b"].loaded["proj"][3, 3] += 1
        proofs, _ = await coordinator.verify(["b"])
        assert proofs[0].fault.startswith("proj block 1 (2..4 of axis 1)")
        assert names(coordinator) == ["a", "c"]
        await together.publish(coordinator)
        await until(lambda: names(coordinator) == ["a", "b", "c"])
    together.check()


@pytest.mark.parametrize("transport", ["collective", "relay"])
async def test_a_delta_is_bitwise_exact(make, tmp_path, transport):
    config = config_of(transport, delta=True)
    together = make(config, HALVES, keep_delta=True)

    async with running(together.world, tmp_path, config, settle=0.2) as coordinator:
        for name in "abc":
            await together.register(coordinator, name)
        _, metrics = await together.publish(coordinator)
        full = metrics["weight_sync/bytes"]
        await until(lambda: names(coordinator) == ["a", "b", "c"])
        for _ in range(3):
            _, metrics = await together.publish(coordinator)
            together.check()
            assert metrics["weight_sync/delta/share"] < 0.5
            assert metrics["weight_sync/bytes"] < full / 2


async def test_one_of_a_host_takes_a_delta_and_all_know_what_it_changed(
    make, tmp_path, monkeypatch
):
    monkeypatch.setattr(delta_changes, "MAX_SHARE", 10)  # of so few elements
    config = config_of("auto", delta=True)
    together = make(config, HALVES, keep_delta=True)
    for rank in together.ranks:
        rank.is_elsewhere = True

    async with running(together.world, tmp_path, config, settle=0.2) as coordinator:
        for name in "abc":
            await together.register(coordinator, name)
        await together.publish(coordinator)
        await until(lambda: names(coordinator) == ["a", "b", "c"])
        for _ in range(3):
            _, metrics = await together.publish(coordinator)
            together.check()
            assert metrics["weight_sync/delta/share"] < 0.5
            assert metrics["weight_sync/shared"] == 2
            assert all(one.knows_changes for one in together.replicas.values())
