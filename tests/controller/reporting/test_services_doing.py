"""What services do at their start stands in the run's record."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from services.controller.reporting import events
from services.controller.reporting.events import RunLog
from services.controller.reporting.report import Reporter
from services.controller.reporting.services_doing import describe, followed
from tests.controller.fakes import make_config
from tests.extending.memory_store import MemoryStore
from trimaran.ledger.write_pause import WritePause
from trimaran.run.context import RunContext
from trimaran.run.runs import (
    EventKind,
    Run,
    RunState,
    events_stream,
    run_from_tree,
    run_key,
    service_key,
)
from trimaran.telemetry.run_files import MetricsWriter, TimelineWriter
from trimaran.trust.access import NO_TRUST
from trimaran.wire import health_note
from trimaran.wire.health_note import Notes


def reporter_of(log: RunLog, folder: Path) -> Reporter:
    files = MetricsWriter(folder), TimelineWriter(folder)
    return Reporter(make_config(), *files, log, WritePause(timeout=0))


async def log_of(store: MemoryStore) -> RunLog:
    run = Run("run", RunState.STARTING, 0, 9)
    return RunLog(store, run, await store.next_epoch("run"), 1.0)


async def test_what_takes_long_is_no_event_and_is_written_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "DOING_SECONDS", 0.1)
    written: list[str] = []

    class Watched(MemoryStore):
        async def put_fenced(self, records: Mapping[str, Any], name: str, epoch: int) -> None:
            written.extend(tree["doing"] for tree in records.values())
            await super().put_fenced(records, name, epoch)

    store = Watched()
    log = await log_of(store)
    reporter = reporter_of(log, tmp_path)
    async with log.writing():
        with (
            reporter.doing("writing the checkpoint of step 3"),
            reporter.doing("validating") as so_far,
        ):
            for number in range(100):
                so_far(f"{number} of 100 prompts")
                await asyncio.sleep(0.002)
            assert (
                log.run.doing == "writing the checkpoint of step 3; validating: 99 of 100 prompts"
            )
        assert log.run.doing == ""
        await asyncio.sleep(0.2)
    assert 3 <= len(written) <= 8 and written[-1] == ""
    assert await store.last(events_stream("run")) == 0


async def test_what_is_done_beside_a_validation_is_outside_the_step_as_the_validation_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("services.controller.reporting.busy_time.time.time", lambda: now[0])
    log = await log_of(MemoryStore())
    reporter = reporter_of(log, tmp_path)
    scoring = reporter.phase("scoring")
    async with log.writing():
        with scoring:
            now[0] = 102
            with reporter.validating(2):
                now[0] = 150
            now[0] = 153
    assert scoring.cut() == 5


async def test_a_run_that_has_ended_does_nothing() -> None:
    store = MemoryStore()
    log = await log_of(store)
    async with log.writing():
        log.doing("waiting for the services")
        log.emit(EventKind.FINISHED, state=RunState.FAILED)
        await log.written()
    record = await store.get(run_key("run"))
    assert record and run_from_tree(record.value).doing == ""


async def test_services_say_what_they_do_beside_their_logs_or_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_note, "own", Notes())  # as it was, afterwards

    store, heard = MemoryStore(), list[str]()
    run = RunContext("run", tmp_path, "sqlite:store.sqlite", NO_TRUST)
    trainer = Notes.claim("trainer-0", {}, tmp_path)
    Notes.claim("reward", {}, tmp_path).serve("127.0.0.1:7001")
    trainer.say("loads 1 of 3 tensors of the model")
    for index, code in ((0, None), (1, 1)):
        record = {"name": f"rollout-{index}", "code": code, "doing": "starts its engine"}
        await store.put(service_key("run", f"rollout-{index}"), record)
    for kind in ("", "trainer"):
        async with followed(heard.append, store, run, kind):
            await asyncio.sleep(0.05)
    loads = "trainer-0 loads 1 of 3 tensors of the model"
    assert heard == [f"rollout-0 starts its engine; {loads}", loads]


def test_who_does_the_same_is_counted() -> None:
    ranks = {f"trainer-{rank}": f"loads {rank} of 9 tensors of the model" for rank in range(3)}
    loads = "trainer-0 loads 0 of 9 tensors of the model (and 2 more)"
    assert describe(ranks) == loads
    others = {"reward": "starts", "rollout-0": "starts its engine"}
    assert describe({**ranks, **others}) == f"reward starts; rollout-0 starts its engine; {loads}"
    assert describe({}) == ""
