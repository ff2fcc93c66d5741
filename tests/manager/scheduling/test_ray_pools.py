"""Ray's nodes as pools, and what becomes of runs when these come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from services.manager.scheduling.needs import find_needs
from services.manager.scheduling.pools import DeviceRequest, Grant, Need, Pool, PoolDevice
from services.manager.scheduling.ray_pools import RayPools, pools_of
from services.manager.scheduling.scheduler import DeviceHolding, Schedule, Scheduler
from tests.launch.ray.fake_cluster import FakeCluster
from tests.manager.fakes import until
from tests.trimaran.run.ray.test_placing import configure
from trimaran.run.ray.cluster import Cluster, Node


def pool(address: str, count: int) -> Pool:
    return Pool(f"{address}-npu", "npu", tuple(f"{address}/{slot}" for slot in range(count)))


def devices(address: str, *slots: int) -> tuple[PoolDevice, ...]:
    return tuple(PoolDevice(f"{address}-npu", f"{address}/{slot}") for slot in slots)


def plan(pools: Sequence[Pool], grant: Grant, most: int = 2) -> Schedule:
    trainer = Need("npu", len(grant.trainer))
    ask = DeviceRequest("a", "ann", 0, 0.0, trainer, Need("npu", 2), 1, most)
    return Scheduler(pools, has_hosts=True).plan([DeviceHolding(ask, grant)], [], 0.0)


def test_a_node_is_a_pool_for_each_kind_of_device_with_its_labels() -> None:
    labels = {"zone": "a", "ray.io/node-id": "4b79"}
    resources = {"CPU": 2.0, "NPU": 2.0, "memory": 1e9, "trimaran_rollout": 1.0}
    npu, cpu = pools_of([Node("4b79", "10.0.0.7", resources, labels)])
    assert npu == Pool(
        "10.0.0.7-npu",
        "npu",
        ("10.0.0.7/0", "10.0.0.7/1"),
        {"zone": "a", "trimaran_rollout": "yes"},
    )
    assert (cpu.name, cpu.kind, len(cpu.devices)) == ("10.0.0.7-cpu", "cpu", 2)


def test_a_node_that_is_kept_for_replicas_gets_no_trainer_and_replicas_go_nowhere_else() -> None:
    kept = {"CPU": 2.0, "trimaran_rollout": 1.0}
    pools = pools_of([Node("1", "a", {"CPU": 2.0}), Node("2", "b", kept)])
    trainer, replica = find_needs(configure(), pools)
    assert [p.name for p in pools if replica.matches(p)] == ["b-cpu"]
    assert {p.name for p in pools if trainer.matches(p)} == {"a-cpu", "b-cpu"}


async def test_pools_are_followed_and_stay_as_they_were_while_the_head_is_away() -> None:
    cluster = FakeCluster()
    pools = RayPools(cast(Cluster, cluster), look_seconds=0.01)
    assert [p.name for p in await pools.open()] == ["10.0.0.1-cpu", "10.0.0.2-cpu"]
    seen: list[Sequence[Pool]] = []
    following = asyncio.create_task(pools.follow(seen.append))
    await asyncio.sleep(0.1)
    cluster.is_away = True
    await asyncio.sleep(0.1)
    count = len(seen)
    await asyncio.sleep(0.1)
    assert len(seen) == count and not following.done()
    cluster.is_away, cluster.known = False, cluster.known[:1]
    await until(lambda: len(seen[-1]) == 1)
    following.cancel()


def test_what_stands_on_a_host_that_is_gone_moves_to_free_devices() -> None:
    grant = Grant(devices("a", 0), {0: devices("a", 1, 2), 1: devices("b", 0, 1)})
    made = plan([pool("b", 4), pool("c", 1)], grant)
    moved = made.moves["a"]
    assert moved.trainer == devices("c", 0)
    assert moved.replicas == {0: devices("b", 2, 3), 1: devices("b", 0, 1)}
    assert not made.takes


def test_a_replica_for_which_nothing_is_free_is_taken_and_comes_back_with_a_host() -> None:
    grant = Grant(devices("b", 0), {0: devices("a", 1, 2), 1: devices("b", 1, 2)})
    made = plan([pool("b", 3)], grant)
    assert made.takes == {"a": frozenset({0})} and not made.moves
    left = Grant(grant.trainer, {1: grant.replicas[1]})
    assert plan([pool("b", 3)], left).adds == {}
    assert plan([pool("b", 3), pool("c", 2)], left).adds == {"a": {0: devices("c", 0, 1)}}


def test_a_trainer_for_which_nothing_is_free_keeps_its_claim() -> None:
    grant = Grant(devices("a", 0), {0: devices("b", 0, 1)})
    made = plan([pool("b", 2)], grant, most=1)
    assert not made.moves and not made.takes
    assert plan([pool("b", 2), pool("a", 1)], grant, most=1).moves == {}
