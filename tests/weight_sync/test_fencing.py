"""What belongs to an earlier time comes too late, also when it waits for its turn."""

from __future__ import annotations

import asyncio

import pytest

from services.weight_sync.ledger import VersionLedger
from tests.weight_sync.fakes import CALLER, RUN, RecordingStore, World, version_of
from tests.weight_sync.test_coordinator import joined, live_of
from trimaran.errors import StaleEpochError
from trimaran.store.sqlite import SqliteStore
from trimaran.types import Caller


async def take_over(folder) -> Caller:
    """As the next controller does: it draws its epoch from the run's store."""
    store = SqliteStore(folder / "store.sqlite")
    epochs = [await store.next_epoch(RUN) for _ in range(CALLER.epoch + 1)]
    await store.close()
    return Caller(RUN, epochs[-1])


async def test_a_publication_that_waits_for_its_turn_ends_with_its_controllers_epoch(
    tmp_path, monkeypatch
):
    world, gate = World(), asyncio.Event()
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
