"""The events of a long run: the newest are kept."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from services.controller.reporting import events
from services.controller.reporting.events import RunLog
from tests.extending.memory_store import MemoryStore
from trimaran.errors import UnavailableError
from trimaran.run.runs import (
    EventKind,
    Run,
    RunState,
    checkpoint_key,
    events_stream,
    run_from_tree,
    run_key,
)
from trimaran.store import TrimmedError, entries
from trimaran.telemetry.metrics import GREEDY_REWARD, REWARD_MEAN, STEP_SECONDS

STREAM = events_stream("run")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT_EVENTS", 10)
    monkeypatch.setattr(events, "TRIM_EVERY", 3)


async def emit(store: MemoryStore, count: int) -> None:
    """As one controller does, an event at a time."""
    run = Run("run", RunState.RUNNING, 0, 100)
    log = RunLog(store, run, await store.next_epoch("run"), patience=1.0)
    async with log.writing():
        for _ in range(count):
            log.emit(EventKind.SKIPPED)
            await log.written()


async def kept(store: MemoryStore) -> list[int]:
    return [number async for number, _ in entries(store, STREAM)]


async def test_the_newest_events_are_kept_and_who_asks_for_older_ones_is_warned() -> None:
    store = MemoryStore()
    await emit(store, 12)
    assert await kept(store) == list(range(1, 13))
    await emit(store, 10)  # a controller that came after
    numbers = await kept(store)
    assert numbers[-1] == 22 and 10 <= len(numbers) < 10 + 3
    with pytest.raises(TrimmedError) as reported:
        await store.read(STREAM, 1)
    assert reported.value.through == numbers[0] - 1


async def test_an_event_is_written_once_though_what_follows_it_fails() -> None:
    class Shaky(MemoryStore):
        num_puts = num_trims = 0

        async def put_fenced(self, *arguments: Any, **more: Any) -> None:
            self.num_puts += 1
            if self.num_puts % 3 == 1:
                raise UnavailableError("the store is away")
            await super().put_fenced(*arguments, **more)

        async def trim(self, stream: str, through: int) -> None:
            self.num_trims += 1
            raise UnavailableError("the store is away")

    store = Shaky()
    await emit(store, 16)
    assert await kept(store) == list(range(1, 17))
    assert store.num_puts > 16 and store.num_trims > 1


async def test_the_run_keeps_the_last_finite_rewards_and_its_devices_while_it_has_processes() -> (
    None
):

    store = MemoryStore()
    run = Run("run", RunState.RUNNING, 0, 9, devices=3)
    log = RunLog(store, run, await store.next_epoch("run"), 1.0)
    async with log.writing():
        for step, reward in enumerate((0.25, math.nan), start=1):
            log.emit(EventKind.STEP, {REWARD_MEAN: reward}, step=step)
            log.emit(EventKind.VALIDATION, {GREEDY_REWARD: 2 * reward}, step=step)
        log.emit(EventKind.SKIPPED)
        await log.written()
    record = await store.get(run_key("run"))
    assert record
    kept = run_from_tree(record.value)
    assert (kept.reward, kept.held_out, kept.devices) == (0.25, 0.5, 3)
    log.emit(EventKind.FINISHED, state=RunState.FAILED)
    assert log.run.devices == 0


async def test_the_end_is_estimated_by_the_last_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    before = Run("run", RunState.RUNNING, 4, 40, ends_at=7.0)  # by a controller before this one
    log = RunLog(store, before, await store.next_epoch("run"), 1.0)
    for step in range(5, 20):
        now = 100.0 * step if step < 10 else 4.0 * step + 1000.0
        monkeypatch.setattr(events.time, "time", lambda now=now: now)
        log.emit(EventKind.STEP, step=step)
        assert (log.run.ends_at > 0) == (step > 5)
    assert log.run.ends_at == 1076.0 + 21 * 4.0
    assert log.run.seconds_left(1100.0) == 60.0
    assert log.run.seconds_left(1160.0) is None
    log.emit(EventKind.STATE, state=RunState.PAUSING)
    assert log.run.seconds_left(1100.0) is None


async def test_a_checkpoint_of_an_earlier_step_does_not_take_the_run_back() -> None:
    """It was written beside the steps after it."""
    store = MemoryStore()
    log = RunLog(store, Run("run", RunState.RUNNING, 0, 100), await store.next_epoch("run"), 1.0)
    async with log.writing():
        log.emit(EventKind.STEP, step=12)
        log.emit(EventKind.CHECKPOINT, text="checkpoints/step-00010", step=10, root="r")
        log.emit(EventKind.CHECKPOINT_FAILED, text="the disk is full", step=11)
        log.emit(EventKind.SKIPPED)
        await log.written()
    reported = [tree["run"]["step"] async for _, tree in entries(store, STREAM)]
    assert reported == [12, 10, 11, 12] and log.run.step == 12
    saved = await store.get(checkpoint_key("run", 10))
    where = {"path": "checkpoints/step-00010", "root": "r"}
    assert saved and saved.value == where | {"saved_at": saved.value["saved_at"]}


async def test_the_log_has_a_line_for_each_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "services.controller.reporting.events")
    store = MemoryStore()
    log = RunLog(store, Run("run", RunState.STARTING, 0, 9), await store.next_epoch("run"), 1.0)
    log.emit(EventKind.STATE, text="waiting for the services")
    log.emit(EventKind.PROCESS, text="reward is ready")
    log.emit(EventKind.STATE, step=4, state=RunState.RUNNING)
    log.emit(EventKind.STEP, {REWARD_MEAN: 0.25, STEP_SECONDS: 1.5}, step=5)
    log.emit(EventKind.CHECKPOINT, text="checkpoints/step-5", step=5)
    log.emit(EventKind.REPLICA_LOST, text="rollout-1: no heartbeat")
    log.emit(EventKind.FINISHED, state=RunState.FAILED, error="the disk is full")
    assert caplog.messages == [
        "run starting, step 0 of 9: waiting for the services",
        "reward is ready",
        "run running, step 4 of 9",
        "step 5 of 9: reward 0.25, 1.5 s",
        "checkpoint: checkpoints/step-5",
        "replica lost: rollout-1: no heartbeat",
        "run failed, step 5 of 9: the disk is full",
    ]
    assert [record.levelname for record in caplog.records[-2:]] == ["WARNING", "WARNING"]
