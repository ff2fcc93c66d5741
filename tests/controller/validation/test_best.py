"""How good a checkpoint is, by a number of its step."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from services.controller.validation.best import score_of
from trimaran.config import RunSection

STEP = {"reward/completion/mean": 0.5, "rollout/completion/truncated/share": 0.25}
VALIDATION = {"validation/greedy_reward/mean": 0.75, "validation/pass_at/2": math.nan}


@pytest.mark.parametrize(
    ("best", "score"),
    [
        ({}, 0.75),
        ({"best_by": "reward/completion/mean"}, 0.5),
        ({"best_by": "-rollout/completion/truncated/share"}, -0.25),
    ],
)
def test_more_is_better_whichever_is_best(best: dict[str, Any], score: float) -> None:
    assert score_of(RunSection(keep_best=1, **best), 10, {**STEP, **VALIDATION}) == score


@pytest.mark.parametrize(
    ("key", "reported"),
    [
        ("validation/pass_at/2", "step 10 has a value that is not finite for validation/pass_at/2"),
        ("validation/task/a/pass_at/2", "step 10 has no validation/task/a/pass_at/2"),
        ("trainer/kl", "step 10 has no trainer/kl"),
    ],
)
def test_a_step_without_the_number_is_never_best_and_is_reported(
    key: str, reported: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    run = RunSection(keep_best=1, best_by=key)
    assert score_of(run, 10, {**STEP, **VALIDATION}) is None
    assert reported in caplog.text


def test_a_step_that_was_not_validated_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    assert score_of(RunSection(keep_best=1), 10, STEP) is None
    assert caplog.text == ""
