"""Replicas that leave their devices to the trainer between two publications."""

from __future__ import annotations

import asyncio

import pytest

from tests.weight_sync.fakes import CALLER, RUN, take_over, version_of
from tests.weight_sync.test_coordinator import (
    join,
    joined,
    names,
    publish,
    publish_all,
    running,
    until,
    without_proofs,
)
from trimaran.errors import StaleEpochError
from trimaran.run.runs import overdue_key
from trimaran.store import open_store
from trimaran.types import ProofLevel


async def recorded(folder, key):
    store = await open_store(f"sqlite:{folder}/store.sqlite")
    try:
        record = await store.get(key)
        return record and record.value
    finally:
        await store.close()


async def test_all_sleep_and_the_next_version_wakes_them(world, tmp_path):
    async with joined(world, tmp_path, "ab") as coordinator:
        world.events.clear()
        await coordinator.sleep(CALLER)
        assert names(coordinator) == ["a", "b"], "what they are to hold has not changed"
        await publish(coordinator, world, 2)
        assert not any(process.is_asleep for process in world.replicas.values())
        events = without_proofs(world.events)
        assert events[:2] == ["a sleeps", "b sleeps"]
        assert "a commits 0.2" in events[2:]
        assert names(coordinator) == ["a", "b"]


async def test_a_read_back_ends_before_they_sleep_and_none_begins_meanwhile(world, tmp_path):
    async with joined(world, tmp_path, "a", level=ProofLevel.SAMPLED) as coordinator:
        await publish(coordinator, world, 2)  # begins a sample
        await coordinator.sleep(CALLER)
        world.events.clear()
        await asyncio.sleep(0.1)
        assert world.events == []
        assert names(coordinator) == ["a"]
        proofs, why = await coordinator.verify([])
        assert (proofs, list(why)) == ((), ["a"])
        assert names(coordinator) == ["a"], "a question of people changes nothing"


async def test_who_joins_meanwhile_is_not_brought_up_before_the_publication(world, tmp_path):
    async with joined(world, tmp_path, "a") as coordinator:
        await coordinator.sleep(CALLER)
        await join(coordinator, world, "b")
        await asyncio.sleep(0.1)
        assert world.replicas["b"].loaded is None
        await publish_all(coordinator, world, 2)
        assert names(coordinator) == ["a", "b"]


async def test_who_joins_is_read_back_before_all_sleep(world, tmp_path):
    begun = asyncio.Event()

    async def slowly(name, version):
        if name == "b":
            begun.set()
            await asyncio.sleep(0.2)

    async with joined(world, tmp_path, "a", level=ProofLevel.LOADED) as coordinator:
        world.hooks["read back"] = slowly
        await join(coordinator, world, "b")
        await begun.wait()
        await coordinator.sleep(CALLER)
        assert names(coordinator) == ["a", "b"]


async def test_one_that_does_not_sleep_leaves_routing_and_the_others_go_on(world, tmp_path):
    async with joined(world, tmp_path, "ab") as coordinator:
        world.replicas["b"].commit = "gone"
        await coordinator.sleep(CALLER)
        assert names(coordinator) == ["a"]
        assert "does not sleep" in coordinator.routing().unroutable["b"]
        reported = await recorded(tmp_path, overdue_key(RUN))
        assert reported == {"b": "does not sleep: b: connection refused"}
        await publish(coordinator, world, 2)
        assert names(coordinator) == ["a"]
        await join(coordinator, world, "b")
        await until(lambda: names(coordinator) == ["a", "b"])


async def test_a_controller_that_was_started_again_wakes_them_with_the_version_that_they_had(
    world, tmp_path
):
    async with joined(world, tmp_path, "ab") as coordinator:
        await coordinator.sleep(CALLER)
        caller = await take_over(tmp_path)
        await coordinator.publish(caller, version_of(1))
        await until(lambda: names(coordinator) == ["a", "b"])
        assert not any(process.is_asleep for process in world.replicas.values())
        with pytest.raises(StaleEpochError):
            await coordinator.sleep(CALLER)


@pytest.mark.parametrize("level", [ProofLevel.DELIVERED, ProofLevel.LOADED])
async def test_weight_sync_that_was_started_again_in_the_trainers_turn_wakes_no_replica_before_its_end(
    world, tmp_path, level
):
    async with joined(world, tmp_path, "ab", level=level) as coordinator:
        world.replicas["b"].commit = "gone"
        await coordinator.sleep(CALLER)
    world.replicas["b"].commit = "ok"
    world.events.clear()
    async with running(world, tmp_path, level=level) as coordinator:
        await asyncio.sleep(0.1)
        assert world.events == [], "neither read back nor brought up"
        await publish_all(coordinator, world, 2)
        await until(lambda: names(coordinator) == ["a", "b"])
        assert not [event for event in world.events if "commits 0.1" in event]
    world.events.clear()
    async with running(world, tmp_path, level=level) as coordinator:  # which sleeps no longer
        await join(coordinator, world, "b")
        await until(lambda: names(coordinator) == ["a", "b"])


async def test_one_that_sleeps_unknown_to_weight_sync_is_woken_by_what_it_says_of_itself(
    world, tmp_path
):
    """Its process was started again since: weight sync takes it for awake until it is asked for tokens."""

    async with joined(world, tmp_path, "a") as coordinator:
        world.replicas["a"].is_asleep = True
        for _ in range(2):
            await coordinator.heartbeat(RUN, "a", 1, None)
        await until(lambda: not world.replicas["a"].is_asleep)
        await until(lambda: names(coordinator) == ["a"])
