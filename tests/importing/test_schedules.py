"""Learning rates of the other projects: the same step by step, or the import says how they differ."""

from __future__ import annotations

import math
from typing import Any

import pytest

from services.trainer.step.learning_rate import learning_rate
from tests.importing.test_tables import config_of, converted

OPTIM = "actor_rollout_ref__actor__optim__"
COSINE: dict[str, Any] = {f"{OPTIM}lr_scheduler_type": "cosine", f"{OPTIM}lr_warmup_steps": 3}
STEPS = 10


def of_verl(step: int, warmup: int, least: float, from_zero: bool) -> float:
    """The rate of the `step`-th step, from 1 on (verl/utils/torch_functional.py, get_cosine_schedule_with_warmup)."""
    place = step - 1 if from_zero else step
    if place < warmup:
        return place / warmup
    progress = (place - warmup) / (STEPS - warmup)
    return max(least, math.cos(math.pi * progress) * (1 - least) / 2 + (1 + least) / 2)


def rates(**keys: Any) -> list[float]:
    config = config_of("verl", **keys, trainer__total_training_steps=STEPS)
    peak = config.trainer.learning_rate
    return [learning_rate(config.trainer, step, STEPS) / peak for step in range(1, STEPS + 1)]


def test_verls_schedule_is_ours_or_one_step_behind_which_is_noted() -> None:
    keys: dict[str, Any] = {**COSINE, f"{OPTIM}min_lr_ratio": 0.1}
    from_1 = [of_verl(step, 3, 0.1, from_zero=False) for step in range(1, STEPS + 1)]
    assert rates(**keys) == pytest.approx(from_1)
    from_0 = [of_verl(step, 3, 0.1, from_zero=True) for step in range(1, STEPS + 1)]
    assert rates(**keys)[:-1] == pytest.approx(from_0[1:])
    key = f"{OPTIM}lr_scheduler_type".replace("__", ".")
    assert "one step ahead" in converted("verl", **keys).having("noted")[key]


def test_a_rate_that_neither_warms_up_nor_falls_is_not_noted() -> None:
    for made in (converted("easyr1"), converted("verl", **{f"{OPTIM}lr_warmup_steps": 0})):
        assert not [key for key in made.having("noted") if ".optim.lr" in key]
