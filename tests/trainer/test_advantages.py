from __future__ import annotations

import math

import pytest

from services.trainer.grpo.advantages import group_advantages, has_signal


def test_mean_and_sample_standard_deviation_of_the_group() -> None:
    # mean 2, deviations -1 0 1, sample variance (1 + 0 + 1) / 2 = 1
    advantages = group_advantages([1.0, 2.0, 3.0], [True] * 3, normalize_std=True)
    assert advantages.tolist() == pytest.approx([-1 / 1.0001, 0.0, 1 / 1.0001], abs=1e-12)


def test_without_normalisation_only_the_mean_is_taken_off() -> None:
    assert group_advantages([0.0, 0.0, 3.0], [True] * 3, False).tolist() == [-1.0, -1.0, 2.0]


def test_a_faulted_completion_is_in_no_statistic_and_has_no_advantage() -> None:
    advantages = group_advantages([0.0, 99.0, 1.0], [True, False, True], True).tolist()
    # of 0 and 1: mean 1/2, sample deviation sqrt(1/2)
    want = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert advantages == pytest.approx([-want, 0.0, want], abs=1e-12)


def test_equal_rewards_give_exactly_zero() -> None:
    # (0.1 + 0.1 + 0.1) / 3 is not 0.1 in binary
    assert group_advantages([0.1] * 3, [True] * 3, True).tolist() == [0.0] * 3
    assert not has_signal([0.1] * 3, [True] * 3)


@pytest.mark.parametrize("scored", [[False, False], [True, False]])
def test_fewer_than_two_scores_teach_nothing(scored: list[bool]) -> None:
    assert group_advantages([1.0, 0.0], scored, True).tolist() == [0.0, 0.0]
