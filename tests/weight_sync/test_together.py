"""Coordinator, senders and receivers together: real tensors over gloo, shared memory and the relay."""

import asyncio
from contextlib import asynccontextmanager
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
        self.values = {name: value.clone() for name, value in self.values.items()}
        for value in self.values.values():
            value.view(-1)[:1] = self.step + 1
        return self.offer(ranks)

    def offer(self, ranks: "list[RealRank]") -> PolicyVersion:
        self.step += 1
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
    config: WeightSyncSection
    world: World
    training: Training
    ranks: list[RealRank]
    replicas: dict[str, RealReplica]

    @asynccontextmanager
    async def registered(self, folder):
        """Running, and every replica is known."""
        async with running(self.world, folder, self.config, settle=0.2) as coordinator:
            for name, replica in self.replicas.items():
                peer = replica.receiver.peer
                await coordinator.register(RUN, Replica(name, f"127.0.0.1:{name}"), peer)
            yield coordinator

    @asynccontextmanager
    async def joined(self, folder):
        """And proven at the first version."""
        async with self.registered(folder) as coordinator:
            await self.publish(coordinator)
            await self.all_proven(coordinator)
            yield coordinator

    async def all_proven(self, coordinator):
        await until(lambda: names(coordinator) == ["a", "b", "c"])

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

    def make(config, shares: tuple[Ranges, ...] = (ALL,)) -> Together:
        training = Training(config.delta)
        ranks = [RealRank(training, rank, share, config) for rank, share in enumerate(shares)]
        replicas = {name: RealReplica(index, config) for index, name in enumerate("abc")}
        ends.extend([*(rank.sender for rank in ranks), *(r.receiver for r in replicas.values())])
        world: Any = World()
        world.connect_senders = lambda caller: ranks
        world.connect_rollout = lambda replica, caller: replicas[replica.name]
        return Together(config, world, training, ranks, replicas)

    yield make
    for end in ends:
        end.close()


def config_of(transport, **options):
    return WeightSyncSection(transport=transport, stage_timeout=30, join_timeout=20, **options)


@pytest.mark.parametrize("shares", [(ALL,), HALVES], ids=["one sender", "two senders"])
@pytest.mark.parametrize("transport", ["auto", "collective", "relay"])
async def test_every_transport_brings_every_block(make, tmp_path, transport, shares):
    together = make(config_of(transport), shares)

    async with together.joined(tmp_path) as coordinator:
        together.check()
        _, metrics = await together.publish(coordinator)
        together.check()
        way = "memory" if transport == "auto" else transport
        assert metrics[f"weight_sync/bytes/{way}"] == metrics["weight_sync/bytes"] > 0
        assert metrics["weight_sync/shared"] == 2 * (transport == "auto")
    assert all(rank.num_sends == 2 * (transport == "collective") for rank in together.ranks)


async def test_the_bytes_of_each_transport_are_booked_under_itself(make, tmp_path):
    """One sender shares memory with the replicas, the other is elsewhere: one stage, two ways. One
    replica takes it, and the others read it there."""
    together = make(config_of("auto"), HALVES)
    near, far = together.ranks
    far.is_elsewhere = True

    async with together.registered(tmp_path) as coordinator:
        _, metrics = await together.publish(coordinator)
    for way, rank in (("memory", near), ("collective", far)):
        pieces = rank.snapshot.layout.pieces
        expected = sum(piece.block.num_bytes for piece in pieces)
        assert metrics[f"weight_sync/bytes/{way}"] == expected > 0
    assert metrics["weight_sync/relayed"] == 0


async def test_a_wrong_bit_in_an_engine_is_found_and_fixed(make, tmp_path):
    together = make(config_of("auto", sample_share=1.0))

    async with together.joined(tmp_path) as coordinator:
        together.replicas["b"].loaded["proj"][3, 3] += 1
        proofs, _ = await coordinator.verify(["b"])
        assert proofs[0].fault.startswith("proj block 1 (2..4 of axis 1)")
        assert names(coordinator) == ["a", "c"]
        await together.publish(coordinator)
        await together.all_proven(coordinator)
    together.check()


@pytest.mark.parametrize("transport", ["collective", "relay", "auto"])
async def test_a_delta_is_bitwise_exact(make, tmp_path, monkeypatch, transport):
    """By default one of a host takes it, and all know what it changed."""
    monkeypatch.setattr(delta_changes, "MAX_SHARE", 10)  # of so few elements
    together = make(config_of(transport, delta=True), HALVES)
    for rank in together.ranks:
        rank.is_elsewhere = transport == "auto"

    async with together.registered(tmp_path) as coordinator:
        _, metrics = await together.publish(coordinator)
        full = metrics["weight_sync/bytes"]
        await together.all_proven(coordinator)
        for _ in range(3):
            _, metrics = await together.publish(coordinator)
            together.check()
            assert metrics["weight_sync/delta/share"] < 0.5
            assert metrics["weight_sync/bytes"] < full / 2
            assert metrics["weight_sync/shared"] == 2 * (transport == "auto")
            assert all(one.knows_changes for one in together.replicas.values())


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
@pytest.mark.parametrize("shares", [(ALL,), HALVES], ids=["one sender", "two senders"])
@pytest.mark.parametrize("transport", ["auto", "collective", "relay"])
async def test_a_step_that_changed_nothing_goes_live_under_the_next_number(
    make, tmp_path, transport, shares, delta
):
    together = make(config_of(transport, delta=delta), shares)
    async with together.joined(tmp_path) as coordinator:
        for _ in range(2):
            # As a trainer whose update was left out: a new version, a new snapshot, the same root.
            version = together.training.offer(together.ranks)
            await coordinator.publish(CALLER, version)
            together.check()
            assert all(r.live.version == version.version for r in together.replicas.values())
            await together.all_proven(coordinator)
        await together.publish(coordinator)
    together.check()
