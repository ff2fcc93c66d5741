"""Learning rates of the other projects: the same step by step, or somebody is told how they differ."""

from __future__ import annotations

import math
from typing import Any

import pytest

from services.trainer.learning_rate import learning_rate
from tests.trimaran.migrating.test_arithmetic import config_of
from tests.trimaran.migrating.test_tables import converted

OPTIM = "actor_rollout_ref__actor__optim__"
COSINE = {f"{OPTIM}lr_scheduler_type": "cosine", f"{OPTIM}lr_warmup_steps": 3}
INDEXED = f"{OPTIM}zero_indexed_step"
STEPS = 10


def of_verl(step: int, warmup: int, least: float, from_zero: bool) -> float:
    """Of the `step`-th step, from 1 on (verl/utils/torch_functional.py, get_cosine_schedule_with_warmup)."""
    place = step - 1 if from_zero else step
    if place < warmup:
        return place / warmup
    progress = (place - warmup) / (STEPS - warmup)
    return max(least, math.cos(math.pi * progress) * (1 - least) / 2 + (1 + least) / 2)


def rates(**keys: Any) -> list[float]:
    config = config_of("verl", **keys, trainer__total_training_steps=STEPS)
    peak = config.trainer.learning_rate
    return [learning_rate(config.trainer, step, STEPS) / peak for step in range(1, STEPS + 1)]


def test_verls_schedule_that_counts_from_1_is_ours_and_nobody_is_told() -> None:
    keys = {**COSINE, INDEXED: False, f"{OPTIM}min_lr_ratio": 0.1}
    theirs = [of_verl(step, 3, 0.1, from_zero=False) for step in range(1, STEPS + 1)]
    assert rates(**keys) == pytest.approx(theirs)
    assert not [key for key in converted("verl", **keys).having("noted") if ".optim." in key]


def test_verls_schedule_that_counts_from_0_is_one_step_behind_ours_and_somebody_is_told() -> None:
    theirs = [of_verl(step, 3, 0.0, from_zero=True) for step in range(1, STEPS + 1)]
    assert rates(**COSINE)[:-1] == pytest.approx(theirs[1:])
    key = INDEXED.replace("__", ".")
    for keys in (COSINE, {**COSINE, INDEXED: True}):
        assert "one step ahead" in converted("verl", **keys).having("noted")[key]
    # Megatron's scheduler there does not read the key.
    megatron = {"actor_rollout_ref__actor__strategy": "megatron", INDEXED: False}
    linear = {**megatron, f"{OPTIM}lr_decay_style": "linear"}
    assert "one step ahead" in converted("verl", **linear).having("noted")[key]


def test_a_warm_up_that_begins_with_a_rate_of_0_is_told() -> None:
    key = f"{OPTIM}lr_warmup_steps".replace("__", ".")
    warm = converted("verl", **{f"{OPTIM}lr_warmup_steps": 3})
    assert warm.tree["trainer"]["warmup_steps"] == 3
    assert "one step ahead" in warm.having("noted")[key]
    assert key not in converted("verl", **{f"{OPTIM}lr_warmup_steps": 0}).having("noted")
    easy = "worker__actor__optim__lr_warmup_steps"
    assert (
        "one step ahead"
        in converted("easyr1", **{easy: 3}).having("noted")[easy.replace("__", ".")]
    )
    ratio = "worker__actor__optim__lr_warmup_ratio"
    assert (
        "one step ahead"
        in converted("easyr1", **{ratio: 0.3}).having("noted")[ratio.replace("__", ".")]
    )
    style = "worker.actor.optim.lr_scheduler_type"
    told = converted("easyr1", **{style.replace(".", "__"): "cosine"}).having("noted")
    assert "one step ahead" in told[style]
    assert not [key for key in converted("easyr1").having("noted") if ".optim." in key]


@pytest.mark.parametrize("given", [-1, 0, None])
def test_verls_ratio_counts_where_no_number_of_warm_up_steps_is_given(given: int | None) -> None:
    keys = {f"{OPTIM}lr_warmup_steps": given, f"{OPTIM}lr_warmup_steps_ratio": 0.3}
    assert config_of("verl", **keys).trainer.warmup_steps == 3


def test_mindspeed_rls_rate_that_moves_with_each_update_is_told() -> None:
    style = "megatron_training.lr_decay_style"
    noted = converted("mindspeed-rl", megatron_training__lr_decay_style="cosine").having("noted")
    assert "each update" in noted[style]
    # Their default falls, too.
    assert "each update" in converted("mindspeed-rl").having("noted")[style]
    constant: dict[str, Any] = {"megatron_training__lr_decay_style": "constant"}
    assert style not in converted("mindspeed-rl", **constant).having("noted")
    actors = converted("mindspeed-rl", actor_config__lr_decay_style="constant")
    assert style not in actors.having("noted")
    warm = "megatron_training.lr_warmup_fraction"
    given = converted("mindspeed-rl", **constant, megatron_training__lr_warmup_fraction=0.2)
    assert "each update" in given.having("noted")[warm]
    assert given.tree["trainer"]["warmup_steps"] == 2
