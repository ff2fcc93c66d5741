import asyncio
import random
from pathlib import Path

import pytest

from services.controller.ledger import Stage
from tests.controller.fakes import PROMPTS, World, dies, make_config
from trimaran.errors import (
    BehindError,
    DeadlineError,
    InternalError,
    PromptTooLongError,
    StaleEpochError,
    TrimaranError,
    UnavailableError,
)
from trimaran.types import Group, Prompt, Score, Unscored, Verdict

GROUPS = 4


def run(world: World) -> World:
    try:
        asyncio.run(asyncio.wait_for(world.run(), 30))
    finally:
        world.close()
    return world


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_lag_reaches_its_bound_and_never_passes_it(tmp_path: Path, max_lag: int) -> None:
    world = World(tmp_path, make_config(run={"max_lag": max_lag, "steps": 20}))
    rng = random.Random(max_lag)
    world.delay = lambda number: asyncio.sleep(rng.choice([0.0, 0.001, 0.02]))
    run(world)
    assert max(world.lags()) == max_lag


def test_groups_train_in_prompt_order_whoever_is_late(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"max_lag": 2}))
    world.delay = lambda number: asyncio.sleep(0.02 if number % 3 == 0 else 0)
    run(world)
    assert world.trained_numbers() == list(range(6 * GROUPS))


def test_slots_are_freed_only_when_the_new_weights_are_live(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"max_lag": 0, "steps": 3}))
    world.weight_sync.pace = lambda: asyncio.sleep(0.02)
    run(world)
    for event in world.events:
        if event[0] == "generate":
            step_before = event[1] // GROUPS
            assert world.events.index(("live", step_before)) < world.events.index(event)
    assert ("live", 2) in world.events


def test_nothing_is_issued_beyond_the_last_step(tmp_path: Path) -> None:
    world = run(World(tmp_path, make_config(run={"max_lag": 3})))
    issued = {event[1] for event in world.events if event[0] == "generate"}
    assert issued == set(range(6 * GROUPS))
    assert world.ledger.state.with_stage(Stage.COMMITTED) == list(range(6 * GROUPS))


def test_a_failed_group_is_tried_elsewhere(tmp_path: Path) -> None:
    world = World(tmp_path, make_config())

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        if number == 5 and attempt == 1:
            raise InternalError("CUDA error")

    world.faults = faults
    run(world)
    tries = [event[2:] for event in world.events if event[:2] == ("generate", 5)]
    assert [attempt for attempt, _ in tries] == [1, 2]
    assert tries[0][1] != tries[1][1]
    assert world.trained_numbers() == list(range(6 * GROUPS))
    assert not world.lost


def test_a_poisonous_prompt_is_skipped_and_the_next_takes_its_slot(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"max_lag": 1, "max_attempts": 3}))

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        if number == 5:
            raise InternalError("boom")

    world.faults = faults
    run(world)
    assert world.trained_numbers() == [n for n in range(6 * GROUPS + 1) if n != 5]
    entry = world.ledger.state.groups[5]
    assert (entry.stage, entry.attempt) == (Stage.SKIPPED, 3)
    assert "boom" in entry.reason
    assert sum(event[0] == "skipped" for event in world.events) == 1


def test_a_prompt_that_kills_replicas_takes_no_innocent_one_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.controller.router.POLL_SECONDS", 0.01)
    config = make_config(run={"max_attempts": 2, "steps": 2}, rollout={"replicas": 1})
    world = World(tmp_path, config)
    alive = [asyncio.Event()]

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        death = alive[-1]
        if number == 2:
            await asyncio.sleep(0.02)
            alive.append(asyncio.Event())
            death.set()
        try:
            async with asyncio.timeout(0.05):
                await death.wait()
        except TimeoutError:
            return
        raise UnavailableError("Socket closed")

    async def heal() -> None:
        while True:
            await asyncio.sleep(0.05)
            world.weight_sync.reports.clear()

    async def body() -> None:
        healer = asyncio.create_task(heal())
        await world.run()
        healer.cancel()

    world.faults = faults
    try:
        asyncio.run(asyncio.wait_for(body(), 30))
    finally:
        world.close()
    assert world.ledger.state.with_stage(Stage.SKIPPED) == [2]
    assert world.trained_numbers() == [n for n in range(2 * GROUPS + 1) if n != 2]


def test_a_dead_replica_is_reported_once_and_its_groups_go_elsewhere(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"max_attempts": 1}))
    world.faults = dies("rollout-1")
    run(world)
    assert world.trained_numbers() == list(range(6 * GROUPS))
    assert world.lost == ["rollout-1"]
    assert world.events.count(("report", "rollout-1")) == 1


def test_a_replica_that_fell_behind_is_no_fault_of_the_prompt(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"max_attempts": 1}))

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        if replica == "rollout-0":
            raise BehindError("holds no version")

    world.faults = faults
    run(world)
    assert world.trained_numbers() == list(range(6 * GROUPS))


def test_no_routable_replica_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(rollout={"replicas": 1}, start_timeout=0.2))
    world.faults = dies("rollout-0")
    with pytest.raises(DeadlineError, match=r"no rollout replica .* rollout-0: .*Socket closed"):
        run(world)


def test_a_prompt_that_is_too_long_is_skipped_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, make_config())

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        if number in (0, 7):
            raise PromptTooLongError("2000 tokens; rollout.max_prompt_tokens is 1024")

    world.faults = faults
    run(world)
    assert world.ledger.state.with_stage(Stage.SKIPPED) == [0, 7]
    assert [e[1] for e in world.events if e[0] == "generate"].count(0) == 1


def test_when_every_prompt_is_skipped_the_run_ends(tmp_path: Path) -> None:
    world = World(tmp_path, make_config())

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        raise PromptTooLongError("2000 tokens")

    world.faults = faults
    with pytest.raises(TrimaranError, match=f"{len(PROMPTS)} prompts .* 2000 tokens"):
        run(world)


def test_a_group_that_cannot_be_scored_is_filtered(tmp_path: Path) -> None:
    world = World(tmp_path, make_config())

    async def faults(group: Group) -> tuple[Verdict, ...] | None:
        unscored = tuple(Unscored("worker killed") for _ in group.completions_G)
        return unscored if group.number == 3 else None

    world.reward.faults = faults
    run(world)
    assert world.ledger.state.with_stage(Stage.FILTERED) == [3]
    assert "worker killed" in world.ledger.state.groups[3].reason


def test_a_frozen_reward_service_ends_the_run_and_is_not_the_prompts_fault(tmp_path: Path) -> None:
    world = World(tmp_path, make_config())

    async def faults(group: Group) -> tuple[Verdict, ...] | None:
        raise DeadlineError("ScoreGroup: no answer within 1 s")

    world.reward.faults = faults
    with pytest.raises(DeadlineError, match="ScoreGroup"):
        run(world)
    assert not world.ledger.state.with_stage(Stage.FILTERED)


def test_a_partly_unscored_group_trains(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"steps": 1}))

    async def faults(group: Group) -> tuple[Verdict, ...] | None:
        return (Unscored("overload"), Score(1.0)) if group.number == 3 else None

    world.reward.faults = faults
    run(world)
    assert isinstance(world.trainer.batches[0].groups[3].verdicts_G[0], Unscored)


def test_a_replaced_controller_ends_with_the_refusal(tmp_path: Path) -> None:
    world = World(tmp_path, make_config())

    async def freeze() -> None:
        if world.trainer.step == 2:
            world.weight_sync.stale = True

    world.trainer.pace = freeze
    with pytest.raises(StaleEpochError, match="epoch 1 was replaced by 2"):
        run(world)
    assert ("live", 3) not in world.events


def test_a_frozen_controller_that_comes_back_can_write_no_record(tmp_path: Path) -> None:
    frozen = World(tmp_path, make_config())
    newer = World(tmp_path, make_config())
    newer.ledger.record("opened", epoch=2)
    asyncio.run(newer.ledger.flush())
    newer.close()
    with pytest.raises(StaleEpochError, match="another controller"):
        run(frozen)
    assert not frozen.trainer.batches


def test_cancel_ends_the_run_after_the_step_under_way(tmp_path: Path) -> None:
    world = World(tmp_path, make_config())

    async def cancel() -> None:
        world.cancelled.set()

    world.trainer.pace = cancel
    run(world)
    assert world.ledger.state.step == 1
    assert world.events[-1] != ("train", 2)
