"""A batch that waits trains while the weights before it are published: what overlaps, and what does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from services.controller.validation.validation import Validation
from tests.controller.fakes import FakeReporter, World, make_config
from tests.controller.test_loop import GROUPS, run
from trimaran.errors import UnavailableError
from trimaran.ledger.records import Scored


def order(world: World, *kinds: str) -> list[tuple[str, int]]:
    return [event[:2] for event in world.events if event[0] in kinds]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def overlapping_world(folder: Path, **sections: Any) -> World:
    """Each publication goes on until the next batch has trained, where it may."""
    world = World(folder, make_config(**{"run": {"max_lag": 1}} | sections))

    async def pace() -> None:
        step = max((number for _, number in order(world, "publish")), default=0)
        if 0 < step < world.config.run.num_steps:
            await until(lambda: ("ahead", step + 1) in world.events)
            await until(lambda: world.trainer.ahead is not None)

    world.weight_sync.pace = pace
    return world


def test_the_next_batch_trains_while_weights_are_published_and_waits_for_them(
    tmp_path: Path,
) -> None:
    world = run(overlapping_world(tmp_path))
    reported = order(world, "train", "version", "publish", "live", "step")
    for step in range(2, 7):
        before, own = ("train", step), ("version", step)
        places = [
            reported.index(one) for one in (("publish", step - 1), before, ("live", step - 1))
        ]
        assert places == sorted(places)
        assert (
            reported.index(("step", step - 1))
            < reported.index(own)
            < reported.index(("publish", step))
        )
    assert world.trained_numbers() == list(range(6 * GROUPS))
    assert max(world.lags()) == 1
    assert [entry.root for entry in world.ledger.state.steps.values()][-1] == world.trainer.root


def test_without_lag_nothing_trains_or_waits_beside_a_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, make_config(run={"max_lag": 0, "steps": 3}))
    world.weight_sync.pace = lambda: asyncio.sleep(0.01)

    def phase(self: FakeReporter, name: str) -> nullcontext[None]:
        if name == "waiting":
            world.events.append((name,))
        return nullcontext()

    monkeypatch.setattr(FakeReporter, "phase", phase)
    run(world)
    reported = [
        event[0] for event in world.events if event[0] in ("train", "live", "ahead", "waiting")
    ]
    assert reported == ["live", *["waiting", "train", "live"] * 3]


@pytest.mark.parametrize("key", ["checkpoint", "validation"])
def test_what_waits_for_the_weights_of_a_step_comes_before_the_next_one(
    tmp_path: Path, key: str
) -> None:
    every = 2 if key == "checkpoint" else 100
    config = make_config(run={"max_lag": 1, "checkpoint_every": every}, validation={"every": 2})
    world = World(tmp_path, config)

    class Validator:
        async def validate(self, step: int, num_samples: int, so_far: Any) -> Validation:
            assert world.weight_sync.live and world.weight_sync.live.version.step == step
            assert world.trainer.step == step and not world.trainer.ahead
            return Validation(0.5, 0.5, 0, 1.0)

    def num_scored() -> int:
        return sum(isinstance(record, Scored) for record in world.recorded)

    async def pace() -> None:
        step = max((number for _, number in order(world, "publish")), default=0)
        if step % 2 and step < 6:
            await until(lambda: ("ahead", step + 1) in world.events)
        elif 0 < step < 6:
            await until(lambda: num_scored() >= (step + 1) * GROUPS)
            await asyncio.sleep(0.1)  # the next batch waits

    world.weight_sync.pace = pace
    kind = "copied"
    if key == "validation":
        world.validator, kind = Validator(), "validated"
    run(world)
    reported = order(world, "ahead", "train", "live", kind)
    for step in (2, 4):
        due = [("live", step), (kind, step), ("train", step + 1)]
        assert [one for one in reported if one in due] == due
    assert [step for name, step in reported if name == "ahead"] == [2, 4, 6]


def test_a_publication_that_fails_ends_the_run_and_comes_first_in_the_next(tmp_path: Path) -> None:
    """The next batch was consumed by then, and trains once: its version follows the one that had failed."""
    world = overlapping_world(tmp_path, run={"max_lag": 1}, outage_timeout=0.1)
    go_on = world.weight_sync.pace

    async def pace() -> None:
        if ("publish", 3) in world.events:
            await until(lambda: ("train", 4) in world.events)
            raise UnavailableError("no replica took version 0.3")
        await go_on()

    hanging = asyncio.Event()

    async def train() -> None:
        if world.trainer.batches[-1].step == 4:
            await hanging.wait()

    world.weight_sync.pace, world.trainer.pace = pace, train
    with pytest.raises(UnavailableError, match=r"no replica took version 0\.3"):
        run(world)
    assert world.ledger.state.step == 3 and world.ledger.state.has_pending_batch
    assert ("version", 4) not in world.events
    again = run(World(tmp_path, world.config, {3: world.trainer.root}))
    reported = order(again, "train", "publish", "live")
    assert reported[:4] == [("publish", 3), ("live", 3), ("train", 4), ("publish", 4)]
    numbers = [scored.group.number for scored in world.trainer.batches[3].groups]
    assert numbers == [scored.group.number for scored in again.trainer.batches[0].groups]
    assert again.trained_numbers() == list(range(3 * GROUPS, 6 * GROUPS))
