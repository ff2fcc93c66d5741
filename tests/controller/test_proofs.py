"""No token of unproven weights trains, and none is lost for it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.controller.proofs import ProofCheck
from tests.controller.fakes import RUN_ID, World, make_config, run
from tests.controller.resuming.test_resume import cut_ledger, records, run_world
from trimaran.errors import DeadlineError, UnavailableError
from trimaran.ledger.group_life import GroupLife, read_life
from trimaran.ledger.group_words import tell
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.ledger.records import Consumed, Generated, Issued, Scored, Tainted
from trimaran.store.sqlite import SqliteStore
from trimaran.types import (
    Group,
    ProofLevel,
    Verdict,
    VersionId,
)

GROUPS = 4
START = VersionId(0, 0)


def trained_makers(world: World) -> set[tuple[VersionId, str]]:
    groups = [scored.group for batch in world.trainer.batches for scored in batch.groups]
    return {maker for group in groups for maker in group.makers}


def attempts(world: World, number: int) -> list[tuple[int, str]]:
    return [event[2:] for event in world.events if event[:2] == ("generate", number)]


async def look_up(folder: Path, number: int) -> GroupLife:
    store = SqliteStore(folder / "store.sqlite")
    try:
        return await read_life(store, FolderPayloads(folder / "payloads"), RUN_ID, number)
    finally:
        await store.close()


def test_tokens_of_an_unproven_replica_never_train_and_their_group_is_reissued(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, make_config(run={"steps": 2}))
    world.weight_sync.missing = {(START, "rollout-1")}
    run(world)
    assert trained_makers(world) == {(START, "rollout-0"), (VersionId(0, 1), "rollout-0")}
    assert world.trained_numbers() == list(range(2 * GROUPS))
    again = [number for number in range(GROUPS) if len(attempts(world, number)) > 1]
    assert again
    for number in again:
        assert attempts(world, number)[:2] == [(1, "rollout-1"), (2, "rollout-0")]
    # Nothing vouches for it, so it takes no more groups until it is proven.
    assert world.events.count(("report", "rollout-1")) == 1
    assert not world.skipped()


def test_a_replica_that_was_fixed_once_is_reported_by_its_own_name(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"steps": 1}))
    world.weight_sync.makers = {"rollout-1": "rollout-1~1"}
    run(world)
    assert trained_makers(world) == {(START, "rollout-0")}
    assert world.events.count(("report", "rollout-1")) == 1


@pytest.mark.parametrize("max_lag", [0, 2])
def test_a_fault_found_between_generation_and_training_too(tmp_path: Path, max_lag: int) -> None:
    world = World(tmp_path, make_config(run={"steps": 3, "max_lag": max_lag}))
    found: list[tuple[VersionId, str]] = []

    async def faults(group: Group) -> tuple[Verdict, ...] | None:
        if group.number == 5 and group.attempt == 1:
            found.extend(group.makers)
            for version, replica in group.makers:
                world.weight_sync.find_fault(version, replica, "block 7 differs")
        return None

    world.reward.faults = faults
    run(world)
    assert len(found) == 1
    assert not trained_makers(world) & set(found)
    assert world.trained_numbers() == list(range(3 * GROUPS))
    assert max(world.lags()) <= max_lag
    kinds = (Issued, Generated, Scored)
    life = [
        (type(record), record.attempt)
        for record in records(tmp_path)
        if isinstance(record, kinds) and record.group == 5
    ]
    assert life == [(kind, attempt) for attempt in (1, 2) for kind in kinds]


def test_a_batch_waits_until_its_weights_have_the_level_that_the_run_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing trains before; nothing is made again for it."""
    world = World(tmp_path, make_config(run={"steps": 3, "proof": "loaded", "max_lag": 1}))
    trained_at: list[bool] = []
    readings: dict[VersionId, asyncio.Task[None]] = {}
    answer, may_rise = world.weight_sync.get_routing, ProofCheck._may_rise
    is_waited_for = asyncio.Event()

    def may_rise_and_report(check: ProofCheck, *given: Any) -> bool:
        is_waited_for.set()
        return may_rise(check, *given)

    async def read_back(version: VersionId) -> None:
        await is_waited_for.wait()
        is_waited_for.clear()
        for name in world.weight_sync.names:
            world.weight_sync.read_back(version, name)

    async def get_routing() -> Any:
        live = world.weight_sync.live
        if live and live.version not in readings:
            readings[live.version] = asyncio.create_task(read_back(live.version))
        return await answer()

    async def until_read_back() -> None:
        is_waited_for.set()
        await asyncio.gather(*readings.values())  # weight sync replaces no version before
        is_waited_for.clear()

    async def note() -> None:
        levels = {maker: proof.level for maker, proof in world.weight_sync.proofs.items()}
        trained_at.append(all(levels[m] is ProofLevel.LOADED for m in trained_makers(world)))

    world.weight_sync.get_routing, world.weight_sync.pace = get_routing, until_read_back
    world.trainer.pace = note
    monkeypatch.setattr(ProofCheck, "_may_rise", may_rise_and_report)
    run(world)
    assert trained_at == [True] * 3
    assert all(len(attempts(world, number)) == 1 for number in range(3 * GROUPS))


def test_tokens_whose_weights_never_reach_the_level_are_made_again(tmp_path: Path) -> None:
    config = make_config(
        run={"steps": 1, "proof": "sampled", "max_attempts": 99},
        weight_sync={"prove_timeout": 0.05},
    )
    world = World(tmp_path, config)
    world.weight_sync.num_loaded = 0

    async def body() -> None:
        running = asyncio.create_task(world.run())
        while not any(len(attempts(world, number)) > 1 for number in range(GROUPS)):
            await asyncio.sleep(0.01)
        assert not world.trainer.batches
        for name in world.weight_sync.names:
            world.weight_sync.read_back(START, name)
        await running

    run(world, body())
    again = [r for r in records(tmp_path) if isinstance(r, Issued) and r.reissue]
    assert again
    why = "the proof's level is delivered, and run.proof is sampled"
    assert all(record.reissue and why in record.reissue.cause for record in again)
    assert world.trained_numbers() == list(range(GROUPS))


def test_what_had_trained_when_a_fault_was_found_is_named_in_the_ledger(tmp_path: Path) -> None:
    """After step 3 a fault is found that taints versions 0.0 and 0.1 of one replica."""
    world = World(tmp_path, make_config(run={"steps": 5, "checkpoint_every": 2}))

    async def find() -> None:
        if world.trainer.step == 2:  # step 3 is under way
            for step in (1, 0):
                world.weight_sync.find_fault(VersionId(0, step), "rollout-1", "block 7 differs")

    world.trainer.pace = find
    run(world)
    batches = world.trainer.batches[:2]
    trained = [
        (scored.group.number, scored.group.attempt)
        for batch in batches
        for scored in batch.groups
        if "rollout-1" in {name for _, name in scored.makers}
    ]
    assert trained
    named = [record for record in records(tmp_path) if isinstance(record, Tainted)]
    versions = ("0.0", "0.1")
    assert named == [
        Tainted("rollout-1", versions, "block 7 differs", (1, 2), tuple(trained), num_faults=2)
    ]
    assert world.events.count(("tainted", "rollout-1", (1, 2))) == 1
    assert world.ledger.state.totals.tainted_groups == len(trained)
    number = trained[0][0]
    life = asyncio.run(look_up(tmp_path, number))
    assert life.tainted == named
    assert any(
        "a fault was found since in what rollout-1 had loaded" in line for line in tell(life)
    )
    again = World(tmp_path, make_config(run={"steps": 6}), {5: world.trainer.root})
    again.weight_sync.faults = world.weight_sync.faults
    run(again)  # which names nothing twice
    assert sum(isinstance(record, Tainted) for record in records(tmp_path)) == 1


def test_a_replay_trains_again_with_the_proofs_of_its_time(tmp_path: Path) -> None:
    """A fault that is found after a batch was trained cannot undo it, nor stop a resume."""
    config = make_config(run={"steps": 3, "checkpoint_every": 100, "deterministic": True})
    whole = tmp_path / "whole"
    whole.mkdir()
    first = run_world(whole, config)
    after_consumed = next(
        i
        for i, record in enumerate(records(whole), start=1)
        if isinstance(record, Consumed) and record.step == 2
    )
    cut_ledger(whole, tmp_path / "crash", after_consumed)
    world = World(tmp_path / "crash", config)
    for version, replica in list(world.weight_sync.proofs):
        world.weight_sync.find_fault(version, replica, "found too late")
    world.close()
    world = World(tmp_path / "crash", config)
    world.weight_sync.names.append("rollout-2")  # proven, unlike all that were there
    world.weight_sync.names[:2] = []
    resumed = run(world)
    assert resumed.trainer.root == first.trainer.root
    assert [event[1] for event in resumed.events if event[0] == "train"] == [1, 2, 3]


def test_a_weight_sync_that_restarts_is_waited_for_and_no_replica_is_blamed(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, make_config(run={"steps": 1}))
    world.weight_sync.list_errors = [UnavailableError("refused"), DeadlineError("no answer")]
    run(world)
    assert world.trained_numbers() == list(range(GROUPS))
    assert [event for event in world.events if event[0] == "report"] == []
