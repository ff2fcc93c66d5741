"""A replica with a fault comes back, also where a version comes before its catch-up with the last one ends."""

import asyncio

from services.weight_sync.coordinator import Coordinator
from tests.weight_sync.fakes import World
from tests.weight_sync.test_coordinator import (
    join,
    joined,
    names,
    publish,
    publish_all,
    running,
    until,
)
from trimaran.types import VersionId


def catch_up_slowly(world: World) -> list[int]:
    """Alone, "b" gets no version before the next one comes. Returns the steps for which it was tried."""
    tried: list[int] = []

    async def stage(name: str, version: VersionId) -> None:
        if name == "b" and f"record {version}" in world.events:
            tried.append(version.step)
            await asyncio.sleep(3600)

    world.hooks["stage"] = stage
    return tried


async def catch_up_after_a_fault(coordinator: Coordinator, world: World) -> list[int]:
    """Version 2 finds "b" away, and "b" is then being brought up to it. Returns as `catch_up_slowly`."""
    await join(coordinator, world, "a", "b")
    await publish_all(coordinator, world)
    tried = catch_up_slowly(world)
    world.replicas["b"].commit = "gone"
    await publish(coordinator, world, 2)
    world.replicas["b"].commit = "ok"
    await until(lambda: tried == [2])
    return tried


async def test_who_is_overtaken_by_a_version_takes_part_in_the_next_one(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        tried = await catch_up_after_a_fault(coordinator, world)
        await publish(coordinator, world, 3)
        assert "b stages 0.3" not in " ".join(world.events)
        await until(lambda: tried == [2, 3])
        await publish(coordinator, world, 4)
        await until(lambda: names(coordinator) == ["a", "b"])
        assert tried == [2, 3]


async def test_who_is_overtaken_in_the_pause_after_its_fault_does_not_take_part(world, tmp_path):
    async with joined(world, tmp_path, "ab", first_retry=3600) as coordinator:
        # A read-back that ends behind the report would prove it again.
        reading = {"sample", "catch-up of b"}
        await until(lambda: not reading & {task.get_name() for task in asyncio.all_tasks()})
        await coordinator.report("b", "a fault")
        for step in (2, 3, 4):
            await publish(coordinator, world, step)
        assert names(coordinator) == ["a"]
        assert "b stages 0.2" not in " ".join(world.events)
