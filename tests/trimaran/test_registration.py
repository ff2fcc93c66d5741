"""Names of a run's services: each has one holder, who is known to be gone by its silence alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from commands.launch.joining import registration
from commands.launch.joining.registered import called_names, with_addresses
from commands.launch.joining.registration import NameTakenError, ServiceRegistration, find_addresses
from commands.launch.joining.service_records import (
    BEAT_SECONDS,
    LOST_SECONDS,
    STARTING_SECONDS,
    ServiceRecord,
    Sightings,
    read_services,
)
from tests.configs import configure
from trimaran.errors import UnavailableError
from trimaran.run.lease import holder_name, is_elsewhere, is_gone, place
from trimaran.run.runs import service_key
from trimaran.store import Store, open_store
from trimaran.wire import health_note
from trimaran.wire.health_note import Notes

RUN = "demo-1"
OTHER = "gpu-8/00000000/4026531836 4711 182345"
"""A process of another host."""


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[Store]:
    store = await open_store(f"sqlite:{folder / 'store.sqlite'}")
    try:
        async with asyncio.timeout(30):
            yield store
    finally:
        await store.close()


async def put(store: Store, record: ServiceRecord) -> None:
    await store.put(service_key(RUN, record.name), record.to_tree())


async def test_a_name_has_one_holder(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for index in (0, 1):
            await put(store, ServiceRecord(f"rollout-{index}", OTHER))
        names = [f"rollout-{index}" for index in range(3)]
        claimed = await ServiceRegistration.claim(store, RUN, names, 5.0)
        assert claimed.record.name == "rollout-2"  # the lowest that is free
        with pytest.raises(UnavailableError, match=r"others still have rollout-0 \(gpu-8"):
            await ServiceRegistration.claim(store, RUN, ["rollout-0"], 0.0)


async def test_what_has_ended_is_free_and_its_end_is_still_reported(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, ServiceRecord("controller", OTHER, "10.0.0.7:1", 1, ("error: no",)))
        claimed = await ServiceRegistration.claim(store, RUN, ["controller"], 0.0)
        assert claimed.record.address == "10.0.0.7:1"  # where it may listen again
        known, _ = (await read_services(store, RUN))["controller"]
        ended = known.find(OTHER)
        assert ended and (ended.code, ended.lines) == (1, ("error: no",))


async def test_a_process_of_this_place_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        gone = f"{place()} 4194304 1"  # no process has this id
        await put(store, ServiceRecord("rollout-1", gone))
        names = ["rollout-0", "rollout-1"]
        claimed = await ServiceRegistration.claim(store, RUN, names, 0.0)
        assert claimed.record.name == "rollout-1"  # it is most likely ours


async def test_who_executes_itself_again_keeps_its_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        first = await ServiceRegistration.claim(store, RUN, ["reward"], 0.0)
        await first.move("10.0.0.7:1")
        again = await ServiceRegistration.claim(store, RUN, ["reward"], 0.0)
        assert again.record == first.record
        with pytest.raises(NameTakenError, match="reward"):
            # Not its own any more: another process has written the record.
            await put(store, replace(first.record, incarnation=OTHER))
            await again.move("10.0.0.7:2")


async def test_a_write_that_was_done_and_not_answered_is_no_conflict(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        claimed = await ServiceRegistration.claim(store, RUN, ["reward"], 0.0)
        await put(store, claimed.record)  # as the store did it
        await claimed.end(0)
        known, _ = (await read_services(store, RUN))["reward"]
        assert known.code == 0


async def test_each_beat_says_what_the_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "BEAT_SECONDS", 0.0)
    monkeypatch.setattr(registration, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(health_note, "own", notes := Notes("reward"))
    notes.say("fetches 3 of 64 parts of the model")
    async with opened(tmp_path) as store:
        claimed = await ServiceRegistration.claim(store, RUN, ["reward"], 0.0)
        keeping = asyncio.create_task(claimed.keep())
        while not (known := (await read_services(store, RUN))["reward"][0]).doing:
            await asyncio.sleep(0.01)
        assert known.doing == notes.doing
        keeping.cancel()


async def test_a_run_that_is_deleted_ends_its_services(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        claimed = await ServiceRegistration.claim(store, RUN, ["reward"], 0.0)
        await store.delete_all()
        with pytest.raises(NameTakenError, match="deleted"):
            await claimed.keep()


def found(version: int, incarnation: str = "a") -> dict[str, tuple[ServiceRecord, int]]:
    return {"reward": (ServiceRecord("reward", incarnation, is_up=True), version)}


def test_who_stood_there_before_we_came_is_heard_once_it_writes() -> None:
    sightings = Sightings()
    sightings.note(found(7), now=100.0)
    assert not sightings.is_beating("reward")
    sightings.note(found(8), now=101.0)
    assert sightings.is_beating("reward")


def test_silence_counts_while_we_listen() -> None:
    sightings = Sightings()
    sightings.note({}, now=100.0)
    for second in range(int(LOST_SECONDS)):  # it came while we listened
        sightings.note(found(1), now=101.0 + second)
        assert sightings.is_beating("reward")
    sightings.note(found(1), now=101.0 + LOST_SECONDS)
    assert sightings.is_lost("reward") and not sightings.is_beating("reward")


def test_who_only_starts_has_more_time() -> None:
    """It has taken its name, and executes itself again: on a busy machine that takes long."""
    sightings, record = Sightings(), ServiceRecord("reward", "a")
    sightings.note({}, now=100.0)
    for second in range(int(STARTING_SECONDS)):
        sightings.note({"reward": (record, 1)}, now=101.0 + second)
        assert not sightings.is_lost("reward")
    sightings.note({"reward": (record, 1)}, now=101.0 + STARTING_SECONDS)
    assert sightings.is_lost("reward")


def test_an_outage_in_which_nothing_was_heard_blames_no_process() -> None:
    sightings = Sightings()
    sightings.note({}, now=100.0)
    sightings.note(found(1), now=101.0)
    sightings.note(found(1), now=101.0 + 100 * LOST_SECONDS)
    assert sightings.is_beating("reward")
    sightings.note(found(1), now=101.0 + 101 * LOST_SECONDS - BEAT_SECONDS)
    assert not sightings.is_lost("reward")


async def test_addresses_are_those_of_services_that_are_heard(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await put(store, ServiceRecord("reward", OTHER, "10.0.0.7:1", is_up=True))
        with pytest.raises(UnavailableError, match="reward, trainer-0 did not register"):
            await find_addresses(store, RUN, ["reward", "trainer-0"], 0.0)
        finding = asyncio.create_task(find_addresses(store, RUN, ["reward"], 20.0))
        await asyncio.sleep(1.0)
        await put(store, ServiceRecord("reward", OTHER, "10.0.0.7:1"))  # it starts again
        await asyncio.sleep(1.0)
        await put(store, ServiceRecord("reward", OTHER, "10.0.0.8:1", is_up=True))
        assert await finding == {"reward": "10.0.0.8:1"}


def test_each_kind_waits_for_those_that_it_calls() -> None:
    config = configure(trainer={"data_parallel": 2})
    ranks = {"trainer-0", "trainer-1"}
    assert called_names(config, "controller", 0) == {"reward", "weight-sync"} | ranks
    assert called_names(config, "weight-sync", 0) == ranks
    assert called_names(config, "rollout", 1) == {"weight-sync"}
    assert called_names(config, "trainer", 1) == {"trainer-0"}
    assert called_names(config, "reward", 0) == set()
    episodes = configure(environment={"python": True, "replicas": 2})
    assert {"environment-0", "environment-1"} < called_names(episodes, "controller", 0)
    found = with_addresses(episodes, "environment", 1, {"environment-1": "e:1"})
    assert found.endpoints.environment[1] == "e:1"
    own = with_addresses(config, "rollout", 1, {"weight-sync": "w:1", "rollout-1": "r:1"})
    assert own.endpoints.weight_sync == "w:1" and own.endpoints.rollout[1] == "r:1"
    rank = with_addresses(config, "trainer", 0, {"trainer-0": "a:1", "trainer-1": "b:1"})
    assert rank.endpoints.trainer == ("a:1", "b:1")


def test_a_process_of_another_place_is_never_taken_for_gone() -> None:
    mine = holder_name(1)
    assert not is_elsewhere(mine) and not is_gone(mine)
    # Containers of one host may share its name and have ids of their own.
    host, boot, space = place().split("/")
    assert space == os.readlink("/proc/self/ns/pid").strip("pid:[]")
    for other in (f"{host}/{boot}/1{space}", f"other/{boot}/{space}", f"{host}/0/{space}"):
        assert is_elsewhere(f"{other} 4194304 1") and not is_gone(f"{other} 4194304 1")
