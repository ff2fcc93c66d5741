"""A replica that deregisters leaves routing at once, and transfer groups between two publications."""

import asyncio
from contextlib import asynccontextmanager

from tests.weight_sync.fakes import RUN
from tests.weight_sync.test_coordinator import (
    join,
    joined,
    names,
    publish,
    until,
)
from trimaran.config import WeightSyncSection


async def test_a_drained_replica_is_routable_and_staged_no_more(world, tmp_path):
    async with joined(world, tmp_path, "ab") as coordinator:
        await coordinator.deregister(RUN, "b", 1)
        routing = coordinator.routing()
        assert names(coordinator) == ["a"]
        assert (routing.drained, routing.unroutable) == ({"b"}, {})
        world.events.clear()
        await publish(coordinator, world, 2)
        assert not await coordinator.heartbeat(RUN, "b", 1, None)
    assert not any(event.startswith("b ") for event in world.events)
    assert "open 2 for 2" in world.events


@asynccontextmanager
async def draining(world, folder):
    """ "b" is drained while it stages version 2, until `go_on` is set."""
    staging, go_on = asyncio.Event(), asyncio.Event()

    async def hold(name, version):
        if name == "b" and version.step == 2:
            staging.set()
            await go_on.wait()

    async with joined(world, folder, "ab") as coordinator:
        world.hooks["stage"] = hold
        publishing = asyncio.create_task(publish(coordinator, world, 2))
        await staging.wait()
        leaving = asyncio.create_task(coordinator.deregister(RUN, "b", 1))
        await until(lambda: coordinator.routing().drained == {"b"})
        yield coordinator, leaving, go_on
        await publishing


async def test_one_that_is_drained_in_a_publication_stays_in_its_group_to_the_end(world, tmp_path):
    async with draining(world, tmp_path) as (coordinator, leaving, go_on):
        assert names(coordinator) == ["a"]
        await asyncio.sleep(0.05)
        assert not leaving.done()
        go_on.set()
        await leaving
        assert not coordinator.routing().unroutable
    # No transfer broke.
    assert {"a stages 0.2 in 1", "b stages 0.2 in 1", "a commits 0.2"} <= set(world.events)


async def test_one_that_waits_no_longer_is_gone_all_the_same(world, tmp_path):
    async with draining(world, tmp_path) as (coordinator, leaving, go_on):
        leaving.cancel()
        go_on.set()
        await until(lambda: coordinator._pool.members.find("b") is None)


async def test_a_drained_name_may_come_back_as_a_newcomer(world, tmp_path):
    async with joined(
        world, tmp_path, "ab", config=WeightSyncSection(heartbeat_timeout=30)
    ) as coordinator:
        await coordinator.deregister(RUN, "b", 1)
        await join(coordinator, world, "b")
        await until(lambda: names(coordinator) == ["a", "b"])
        assert not coordinator.routing().drained
        await coordinator.deregister(RUN, "b", 1)  # of its former life
        assert names(coordinator) == ["a", "b"]
