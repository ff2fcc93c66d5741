"""verl's names of a validation."""

from __future__ import annotations

from trimaran.telemetry.validation_names import verl_validation

TASK = "validation/task/openai/gsm8k"


def test_the_largest_k_is_core_and_the_others_are_auxiliary() -> None:
    values = {
        "validation/pass_at/1": 0.9,
        f"{TASK}/greedy_reward/mean": 0.1,
        f"{TASK}/greedy_correct/share": 0.2,
        f"{TASK}/sampled_reward/mean": 0.3,
        f"{TASK}/pass_at/1": 0.4,
        f"{TASK}/pass_at/2": 0.5,
        f"{TASK}/pass_at/4": 0.6,
        f"{TASK}/majority_at/2": 0.45,
        f"{TASK}/majority_at/4": 0.55,
    }
    assert verl_validation(values) == {
        "val-aux/openai/gsm8k/reward/mean@4": 0.3,
        "val-core/openai/gsm8k/acc/mean@4": 0.4,
        "val-aux/openai/gsm8k/acc/best@2/mean": 0.5,
        "val-core/openai/gsm8k/acc/best@4/mean": 0.6,
        "val-aux/openai/gsm8k/acc/maj@2/mean": 0.45,
        "val-core/openai/gsm8k/acc/maj@4/mean": 0.55,
    }


def test_without_samples_the_greedy_answer_is_the_one_of_n() -> None:
    values = {f"{TASK}/greedy_reward/mean": 0.1, f"{TASK}/greedy_correct/share": 0.2}
    values["validation/seconds"] = 12.5
    assert verl_validation(values) == {
        "timing_s/testing": 12.5,
        "val-aux/openai/gsm8k/reward/mean@1": 0.1,
        "val-core/openai/gsm8k/acc/mean@1": 0.2,
    }
