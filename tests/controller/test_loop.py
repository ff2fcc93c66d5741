import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from services.controller import saving
from services.controller.validation.validation import Validation
from tests.controller.fakes import PROMPTS, InMemory, World, dies, make_config, run
from trimaran.data.prompts import UnusableImageError
from trimaran.errors import (
    DeadlineError,
    InternalError,
    PromptTooLongError,
    StaleEpochError,
    TrimaranError,
    UnavailableError,
)
from trimaran.ledger.records import Checkpointed, Issued
from trimaran.types import Prompt

GROUPS = 4


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_lag_reaches_its_bound_and_never_passes_it(tmp_path: Path, max_lag: int) -> None:
    world = World(tmp_path, make_config(run={"max_lag": max_lag, "steps": 20}))
    rng = random.Random(max_lag)
    # So slow that the trainer always waits: the controller then uses all slots.
    world.delay = lambda number: asyncio.sleep(rng.choice([0.05, 0.06, 0.1]))
    run(world)
    assert max(world.lags()) == max_lag


def test_colocated_replicas_sleep_while_the_trainer_trains(tmp_path: Path) -> None:
    rollout = {"replicas": 1, "group_size": 2, "max_tokens": 4}
    world = World(
        tmp_path, make_config(run={"max_lag": 0, "steps": 3, "pools": "colocated"}, rollout=rollout)
    )
    run(world)
    kinds = {"sleep", "train", "publish", "generate"}
    turns = [event[0] for event in world.events if event[0] in kinds]
    changes = [one for one, before in zip(turns, ["", *turns], strict=False) if one != before]
    assert changes[-12:] == ["generate", "sleep", "train", "publish"] * 3


def test_a_publication_is_given_the_time_of_all_that_it_may_wait_for(tmp_path: Path) -> None:
    """Joiners are read back, then the version before, then one that becomes routable."""
    seconds = {"join_timeout": 1, "prove_timeout": 1000, "stage_timeout": 1, "commit_timeout": 1}
    world = run(World(tmp_path, make_config(run={"steps": 1}, weight_sync=seconds)))
    assert world.weight_sync.publish_timeout > 3000


def test_a_poisonous_prompt_is_skipped_and_the_next_takes_its_slot(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"max_lag": 1, "max_attempts": 3}))

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        if number == 5:
            raise InternalError("boom")

    world.faults = faults
    run(world)
    assert world.trained_numbers() == [n for n in range(6 * GROUPS + 1) if n != 5]
    skipped = world.skipped()[5]
    assert skipped.attempt == 3
    assert "boom" in skipped.reason
    assert sum(event[0] == "skipped" for event in world.events) == 1


def test_a_prompt_that_kills_replicas_takes_no_innocent_one_with_it(tmp_path: Path) -> None:
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
    run(world, body())
    assert list(world.skipped()) == [2]
    assert world.trained_numbers() == [n for n in range(2 * GROUPS + 1) if n != 2]


def test_a_dead_replica_is_reported_once_and_its_groups_go_elsewhere(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(run={"max_attempts": 1}))
    world.faults = dies("rollout-1")
    run(world)
    assert world.trained_numbers() == list(range(6 * GROUPS))
    assert world.lost == ["rollout-1"]
    assert world.events.count(("report", "rollout-1")) == 1


def test_no_routable_replica_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(rollout={"replicas": 1}, outage_timeout=0.2))
    world.faults = dies("rollout-0")
    with pytest.raises(DeadlineError, match=r"no rollout replica .* rollout-0: .*Socket closed"):
        run(world)


def test_a_prompt_whose_image_cannot_be_used_is_skipped_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, make_config())

    async def fetch(self: InMemory, number: int) -> Prompt:
        prompt = self.at(number)
        if number == 3:
            raise UnusableImageError("train.jsonl:4: image 1: 5 bytes are no image", prompt)
        return prompt

    monkeypatch.setattr(InMemory, "fetch", fetch)
    run(world)
    assert list(world.skipped()) == [3]
    assert "image 1" in world.skipped()[3].reason
    issued = [record for record in world.recorded if isinstance(record, Issued)]
    assert [record.attempt for record in issued if record.group == 3] == [1]
    assert 3 not in world.trained_numbers()


def test_when_every_prompt_is_skipped_the_run_ends(tmp_path: Path) -> None:
    world = World(tmp_path, make_config())

    async def faults(number: int, attempt: int, prompt: Prompt, replica: str) -> None:
        raise PromptTooLongError("2000 tokens")

    world.faults = faults
    with pytest.raises(TrimaranError, match=f"{len(PROMPTS)} prompts .* 2000 tokens"):
        run(world)


def test_a_cancel_gives_up_the_validation_under_way_and_makes_no_other(tmp_path: Path) -> None:
    world = World(tmp_path, make_config(validation={"every": 1}))
    steps: list[int] = []

    class Validator:
        async def validate(self, step: int, num_samples: int, so_far: Any) -> Validation:
            steps.append(step)
            if step == 2:
                world.ending.set()
                world.cancelled.set()
                await asyncio.Event().wait()
            return Validation(0.5, 0.5, 0, 1.0)

    world.validator = Validator()
    run(world)
    assert (world.ledger.state.step, steps, list(world.validations)) == (2, [1, 2], [])
    assert [event[1] for event in world.events if event[0] == "validated"] == [1]


def nonfinite_at(*steps: int) -> Callable[[int], str]:
    return lambda step: f"group {4 * step}: reward nan" if step in steps else ""


def test_a_step_that_is_not_finite_is_counted_published_and_recorded(tmp_path: Path) -> None:
    world = World(tmp_path, make_config())
    world.trainer.nonfinite = nonfinite_at(2, 3, 5)
    run(world)
    steps = list(world.ledger.state.steps.values())
    assert [entry.nonfinite for entry in steps] == [
        *("", "group 8: reward nan", "group 12: reward nan", "", "group 20: reward nan", "")
    ]
    assert steps[0].root == steps[1].root == steps[2].root != steps[3].root == steps[4].root
    assert [event[1] for event in world.events if event[0] == "live"] == list(range(7))
    assert ("nonfinite", 3, "group 12: reward nan") in world.events
    assert set(world.lags()) == {0}
    assert world.trained_numbers() == list(range(6 * GROUPS))


def test_too_many_steps_in_a_row_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    """Each has its row, the last checkpoint stands, and a resumed run goes on behind them."""
    config = make_config(
        run={"steps": 9, "checkpoint_every": 2}, trainer={"max_nonfinite_steps": 4}
    )
    world = World(tmp_path, config)
    world.trainer.nonfinite = nonfinite_at(1, 2, *range(4, 20))
    with pytest.raises(TrimaranError, match=r"4 steps in a row .* step 7: group 28: reward nan"):
        run(world)
    assert [event for event in world.events if event[0] == "step"][-1] == ("step", 7)
    assert world.ledger.state.step == 7
    assert max(world.checkpoints) == 6
    mended = World(tmp_path, config, world.checkpoints)
    mended.trainer.nonfinite = nonfinite_at(1, 2, *range(4, 8))
    run(mended)
    assert mended.ledger.state.step == 9


def test_a_checkpoint_that_fails_costs_a_message(tmp_path: Path) -> None:
    config = make_config(run={"checkpoint_every": 2})
    world = World(tmp_path, config)
    faults = {
        2: DeadlineError("checkpoint of step 2: took over 600 s (trainer.save_timeout)"),
        4: UnavailableError("checkpoint of step 2 still hangs"),
    }

    async def pace() -> None:
        step = world.trainer.step + 1
        world.trainer.save_fault = faults[2] if step == 2 else None
        world.trainer.copy_fault = faults[4] if step == 4 else None

    world.trainer.pace = pace
    run(world)
    assert world.ledger.state.step == 6
    assert world.ledger.state.checkpoints == [6]
    failed = [event[1:] for event in world.events if event[0] == "checkpoint failed"]
    assert failed == [(step, str(fault)) for step, fault in faults.items()]


def test_steps_train_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """It is recorded and reported once it is written; the next save waits for that, and so does the run's end."""
    world = World(tmp_path, make_config(run={"checkpoint_every": 2}))

    async def write(step: int) -> None:
        if step == 2:
            async with asyncio.timeout(60):
                while world.trainer.step < 4:
                    await asyncio.sleep(0.001)
        assert step not in world.ledger.state.checkpoints

    world.trainer.write_pace = write
    run(world)
    kinds = ("train", "copied", "checkpoint", "saved")
    order = [event[:2] for event in world.events if event[0] in kinds]
    assert order.index(("train", 4)) < order.index(("checkpoint", 2)) < order.index(("copied", 4))
    assert order[-3:] == [("copied", 6), ("checkpoint", 6), ("saved", 6)]
    saved = {event[1]: event[2] for event in world.events if event[0] == "saved"}
    assert saved == {step: world.checkpoints[step] for step in (2, 4, 6)}
    records = [one for one in world.recorded if isinstance(one, Checkpointed)]
    assert [(one.step, one.oldest) for one in records] == [(2, 2), (4, 4), (6, 6)]


def failing_world(
    tmp_path: Path, write: Callable[[], Awaitable[Any]], max_lag: int = 0, **trainer: Any
) -> World:
    """Its step 7 ends it, while the checkpoint of step 6 is written."""
    run_section = {"steps": 9, "checkpoint_every": 6, "max_lag": max_lag}
    world = World(tmp_path, make_config(run=run_section, trainer=trainer))
    failed = asyncio.Event()

    async def pace() -> None:
        if world.trainer.step == 6:
            failed.set()
            raise InternalError("step 7 failed")

    async def write_pace(step: int) -> None:
        await failed.wait()
        await write()

    world.trainer.pace, world.trainer.write_pace = pace, write_pace
    return world


def test_a_run_that_fails_ends_once_its_checkpoint_is_written(tmp_path: Path) -> None:
    world = failing_world(tmp_path, lambda: asyncio.sleep(0.05))
    with pytest.raises(InternalError, match="step 7 failed"):
        run(world)
    assert world.ledger.state.checkpoints == [6]
    saved = {event[1]: event[2] for event in world.events if event[0] == "saved"}
    assert saved == {6: world.checkpoints[6]}
    reported = [event[0] for event in world.events if event[0] in ("failing", "saved")]
    assert reported == ["failing", "saved"], "people hear why before they wait for it"
    assert ("failing", "step 7 failed") in world.events


def test_a_write_that_hangs_keeps_a_failed_run_for_its_deadline_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "MARGIN_SECONDS", 0.1)
    world = failing_world(tmp_path, asyncio.Event().wait, save_timeout=0.1)
    with pytest.raises(InternalError, match="step 7 failed"):
        run(world)
    assert not world.ledger.state.checkpoints


def test_a_run_resumes_from_a_checkpoint_that_was_recorded_behind_later_steps(
    tmp_path: Path,
) -> None:
    config = make_config(run={"checkpoint_every": 2, "deterministic": True})
    world = World(tmp_path, config)

    async def write(step: int) -> None:
        async with asyncio.timeout(60):
            while step == 2 and world.trainer.step < 4:
                await asyncio.sleep(0.001)
        world.trainer.save_fault = InternalError("No space left on device")  # the saves after it

    world.trainer.write_pace = write
    run(world)
    again = World(tmp_path, config, {2: world.checkpoints[2]})
    run(again)  # over 3 to 6
    assert [batch.step for batch in again.trainer.batches] == [3, 4, 5, 6]
    assert again.trainer.root == world.trainer.root


def test_a_checkpoint_knows_the_score_of_its_step(tmp_path: Path) -> None:
    """Not that of an earlier step, whose weights were others."""
    world = World(tmp_path, make_config(run={"checkpoint_every": 2}))
    world.validations |= {
        1: Validation(greedy=0.9, sampled=0.8, num_skipped=0, seconds=2.0),
        2: Validation(greedy=0.5, sampled=0.7, num_skipped=0, seconds=2.0),
        6: Validation(greedy=None, sampled=None, num_skipped=3, seconds=2.0),
    }
    run(world)
    assert world.trainer.scores == {2: 0.5, 4: None, 6: None}


def test_a_checkpoint_comes_early_where_its_collection_keeps_the_quota_from_filling(
    tmp_path: Path,
) -> None:
    """Else the run would be held, with nothing that could make room."""

    def saved(folder: str, **more: Any) -> tuple[list[int], int]:
        (tmp_path / folder).mkdir()
        sections = {"steps": 12, "checkpoint_every": 100, **more}
        world = World(tmp_path / folder, make_config(run=sections))
        run(world)
        assert world.ledger.state.step == 12
        steps = [event[1] for event in world.events if event[0] == "saved"]
        return steps, sum(path.stat().st_size for path in (tmp_path / folder).glob("payloads/*"))

    everything = {"keep_payloads": "all"}
    steps, num_bytes = saved("all", **everything)
    assert steps == []
    half = num_bytes / 2 / (1 << 30)
    steps, num_left = saved("half", payload_quota_gib=half)
    assert steps and num_left < num_bytes / 2
    assert saved("twice", payload_quota_gib=4 * half)[0] == [], "there was room"
    assert saved("kept", payload_quota_gib=2.2 * half, **everything)[0] == [], "it frees nothing"


@pytest.mark.parametrize("when", ["publish_fault", "copy_fault", "save_fault"])
def test_a_replaced_controller_ends_with_the_refusal(tmp_path: Path, when: str) -> None:
    world = World(tmp_path, make_config(run={"checkpoint_every": 2}))
    refusal = StaleEpochError("run run-1: epoch 1 was replaced by 2")

    async def pace() -> None:
        if world.trainer.step == 1:
            setattr(world.weight_sync if when == "publish_fault" else world.trainer, when, refusal)

    world.trainer.pace = pace
    with pytest.raises(StaleEpochError, match="epoch 1 was replaced by 2"):
        run(world)
    assert world.ledger.state.step == 2
