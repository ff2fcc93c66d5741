"""Epochs and attempts: what a controller that was replaced, or a try that was given up, can still do."""

import asyncio

import pytest

from services.weight_sync.ledger import VersionLedger
from tests.weight_sync.fakes import CALLER, RUN, RecordingStore, World, take_over, version_of
from tests.weight_sync.test_coordinator import (
    QUICK,
    join,
    joined,
    live_of,
    names,
    publish,
    publish_all,
    running,
    until,
)
from trimaran.errors import InputError, StaleEpochError, UnavailableError
from trimaran.types import Caller, VersionId


def when_staged(world, act):
    """`act` once, between the last STAGE and the commit record."""
    awaited = set(world.replicas)

    async def act_last(name, version):
        awaited.discard(name)
        if not awaited:
            del world.hooks["staged"]
            await act()

    world.hooks["staged"] = act_last


async def test_a_controller_that_is_replaced_while_it_stages_publishes_nothing(world, tmp_path):
    """The newer one has only drawn its epoch: nothing here has heard of it yet."""

    async def draw():
        await take_over(tmp_path)

    async with joined(world, tmp_path, "ab") as coordinator:
        when_staged(world, draw)
        with pytest.raises(StaleEpochError, match="epoch 1 was replaced by 2"):
            await publish(coordinator, world, 2)
        assert live_of(coordinator) == VersionId(0, 1)
        assert names(coordinator) == ["a", "b"]
        await until(lambda: not world.replicas["a"].staged)
    assert "record 0.2" not in world.events
    async with running(world, tmp_path) as coordinator:
        assert live_of(coordinator) == VersionId(0, 1)


async def test_a_publication_speaks_in_the_epoch_that_began_it(world, tmp_path):
    """Not in that of a newer controller that asks something meanwhile."""

    async with joined(world, tmp_path, "ab") as coordinator:

        async def meet():
            await coordinator.meet(await take_over(tmp_path))

        when_staged(world, meet)
        world.calls.clear()
        with pytest.raises(StaleEpochError):
            await publish(coordinator, world, 2)
        await until(lambda: len(world.calls) == 4)
        assert dict(world.calls) == dict.fromkeys(
            [f"{call} 0.2 on {name}" for call in ("stage", "abort") for name in "ab"], 1
        )


async def test_what_is_recorded_rolls_forward_in_the_epoch_of_the_one_that_has_taken_over(
    world, tmp_path, monkeypatch
):
    async with joined(world, tmp_path, "ab") as coordinator:
        record = coordinator._ledger.commit

        async def record_and_meet(*arguments):
            await record(*arguments)
            await coordinator.meet(await take_over(tmp_path))

        monkeypatch.setattr(coordinator._ledger, "commit", record_and_meet)
        world.calls.clear()
        await publish(coordinator, world, 2)
        assert dict(world.calls) == {
            "stage 0.2 on a": 1,
            "stage 0.2 on b": 1,
            "commit 0.2 on a": 2,
            "commit 0.2 on b": 2,
        }


async def test_the_successor_does_not_share_the_fate_of_the_same_version(world, tmp_path):
    async with joined(world, tmp_path, "a") as coordinator:
        newer: list[asyncio.Task] = []

        async def publish_too():
            caller = await take_over(tmp_path)
            newer.append(asyncio.create_task(publish(coordinator, world, 2, caller)))
            await asyncio.sleep(0.01)

        when_staged(world, publish_too)
        with pytest.raises(StaleEpochError):
            await publish(coordinator, world, 2)
        await newer[0]
        assert live_of(coordinator) == VersionId(0, 2)


async def test_a_replica_that_knows_the_successor_is_not_blamed(world, tmp_path):
    async def refuse(name, version):
        if name == "b":
            raise StaleEpochError("run run: epoch 1 was replaced by 2")

    async with joined(world, tmp_path, "ab", config=QUICK) as coordinator:
        world.hooks["stage"] = refuse
        with pytest.raises(StaleEpochError):
            await publish(coordinator, world, 2)
        assert names(coordinator) == ["a", "b"]
        assert live_of(coordinator) == VersionId(0, 1)


@pytest.mark.parametrize("epoch", [2, 1000, 2**62, 2**63, 2**64 - 1])
async def test_an_epoch_that_was_never_drawn_locks_nothing_out(world, tmp_path, epoch):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a")
        with pytest.raises(InputError, match=f"epoch {epoch} was never drawn"):
            await coordinator.meet(Caller(RUN, epoch))
        with pytest.raises(InputError, match="the newest of this run is 1"):
            await publish(coordinator, world, 1, Caller(RUN, epoch))
        await publish(coordinator, world, 1)
    async with running(world, tmp_path) as coordinator:
        await publish(coordinator, world, 2)
        await publish(coordinator, world, 3, await take_over(tmp_path))
        assert live_of(coordinator) == VersionId(0, 3)


async def test_a_late_abort_leaves_the_next_try_alone(world, tmp_path):
    """The first try fails on both replicas; its ABORTs arrive when the second has staged."""
    late = asyncio.Event()

    async def wait(name, version):
        await late.wait()

    world.hooks["abort"] = wait

    async with joined(world, tmp_path, "ab", config=QUICK) as coordinator:
        for name in "ab":
            world.replicas[name].stage = "broken"
        with pytest.raises(UnavailableError):
            await publish(coordinator, world, 2)
        for name in "ab":
            world.replicas[name].stage = "ok"

        async def let_them_arrive():
            late.set()
            await until(lambda: world.events.count("b aborts 0.2") >= 1)
            await until(lambda: world.events.count("a aborts 0.2") >= 1)

        when_staged(world, let_them_arrive)
        _, metrics = await publish(coordinator, world, 2)
        assert metrics["weight_sync/replicas"] == 2
        assert names(coordinator) == ["a", "b"]


async def test_one_member_keeps_its_copy_of_the_live_version(world, tmp_path):
    async with running(world, tmp_path, first_retry=30.0) as coordinator:
        await join(coordinator, world, "b", "a", "c")
        await publish_all(coordinator, world, 1)
        assert world.keepers == []  # there was nothing to keep
        await publish(coordinator, world, 2)
        assert world.keepers == ["a"]
        await coordinator.report("a", "gone")
        await publish(coordinator, world, 3)
        assert world.keepers == ["a", "b"]


async def test_a_publication_that_waits_for_its_turn_ends_with_its_controllers_epoch(
    world, tmp_path, monkeypatch
):
    gate = asyncio.Event()
    async with joined(world, tmp_path, "a") as coordinator:
        monkeypatch.setattr(world, "point", gate.wait)
        world.step = 2
        first = asyncio.create_task(coordinator.publish(CALLER, version_of(2)))
        queued = asyncio.create_task(coordinator.publish(CALLER, version_of(3)))
        await asyncio.sleep(0.05)  # both have passed the door, one holds the lock
        await coordinator.meet(await take_over(tmp_path))
        gate.set()
        with pytest.raises(StaleEpochError, match="epoch 1 was replaced by"):
            await queued
        await asyncio.gather(first, return_exceptions=True)
        live = live_of(coordinator)
        assert live and live.step < 3


def test_the_number_of_a_transfer_group_is_never_given_twice_also_after_a_restart(tmp_path):
    async def draw() -> list[int]:
        store = RecordingStore(tmp_path / "store.sqlite", World())
        ledger = await VersionLedger.open(store, RUN)
        numbers = [await ledger.next_group_id() for _ in range(3)]
        await store.close()
        return numbers

    assert asyncio.run(draw()) + asyncio.run(draw()) == [1, 2, 3, 4, 5, 6]
