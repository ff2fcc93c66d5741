"""Hundreds of short runs whose delays, deaths and ends are drawn: each ends, at its last step, and its ledger
adds up."""

from __future__ import annotations

import pytest

from tests.controller.simulation import Plan, draw_plan, simulate

EVERYTHING = ("quota", "sampling", "kills", "faults", "moves")
KINDS = [
    (),
    ("quota",),
    ("kills", "sampling"),
    ("faults", "moves"),
    ("end",),
    EVERYTHING,
    (*EVERYTHING, "end"),
]


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_a_run_ends_whatever_takes_long_and_dies(kinds: tuple[str, ...]) -> None:
    for seed in range(6):
        simulate(draw_plan(seed, *kinds))


@pytest.mark.e2e
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_hundreds_of_runs_end_whatever_takes_long_and_dies(kinds: tuple[str, ...]) -> None:
    num_ahead = num_lives = 0
    for seed in range(1000, 1150):
        reported = simulate(draw_plan(seed, *kinds))
        num_ahead, num_lives = num_ahead + reported.ahead, num_lives + reported.lives
    assert num_ahead > 30, "steps hardly ever train beside a publication"
    assert num_lives > 150 * (1.5 if "kills" in kinds else 0.99)


@pytest.mark.parametrize(
    ("seed", "keep_checkpoints"), [(29, 2), (29, 1), (5, 2), (20, 1), (36, 1), (181, 1)]
)
def test_a_quota_of_six_steps_never_stops_a_run_that_is_two_steps_ahead(
    seed: int, keep_checkpoints: int
) -> None:
    """Groups that found no room kept the step under way from its record, and so from the checkpoint that makes
    room."""
    plan = Plan(
        *(seed, 20, 1, 2),
        keep_checkpoints=keep_checkpoints,
        quota_steps=6,
        times=(0.0, 0.0, 0.0, 5.0),
    )
    simulate(plan)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("max_lag", "keep_checkpoints"), [(0, 3), (0, 6), (1, 3), (3, 4)])
def test_the_payloads_of_checkpoints_that_are_kept_are_foreseen(
    seed: int, max_lag: int, keep_checkpoints: int
) -> None:
    """A checkpoint makes no room as long as the oldest one is kept: those before it have to be saved in time. In
    the smallest quota in which the run can go on."""
    plan = Plan(
        *(seed, 20, 2, max_lag),
        keep_checkpoints=keep_checkpoints,
        quota_steps=max_lag + 1 + keep_checkpoints,
        times=(1.0,),
    )
    assert not simulate(plan).held


@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_a_group_that_is_larger_than_all_before_waits_for_a_checkpoint_and_no_longer(
    max_lag: int,
) -> None:
    """No forecast knows of it: the trainer, which waits for its batch, saves first."""
    plan = Plan(0, 12, 1, max_lag, quota_steps=12, large={4: 9.0, 9: 9.0}, times=(1.0,))
    assert simulate(plan).held, "it had room"


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_a_cancel_lets_no_further_batch_train(max_lag: int) -> None:
    """As `simulate` looks."""
    for seed in range(12):
        plan = Plan(seed, 12, 2, max_lag, ends_at=3 + seed, times=(0.0, 1.0, 6.0))
        reported = simulate(plan)
        assert reported.state.step < 12
