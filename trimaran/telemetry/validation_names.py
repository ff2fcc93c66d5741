"""verl's names of a validation's numbers, as its verl/trainer/ppo/metric_utils.py and ray_trainer.py give them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trimaran.telemetry.metrics import VALIDATION_SECONDS

CORRECT, REWARD, LARGEST, SMALLER = "acc", "reward", "val-core", "val-aux"
"""verl files what is of all samples of a prompt under val-core, and what is of fewer under val-aux."""
TESTING = "timing_s/testing"
VALIDATION_NAMES: Mapping[str, tuple[str, str]] = {
    "val-core/<task>/acc/mean@<n>": (
        "validation/task/<task>/pass_at/1",
        "n: the samples of a prompt; without samples n is 1 and it is `greedy_correct/share`. Their `acc` is a"
        " number that the reward function names so, else they have `reward` there; ours is correct or not:"
        " docs/algorithms.md",
    ),
    "val-core/<task>/acc/best@<n>/mean, val-aux/<task>/acc/best@<k>/mean": (
        "validation/task/<task>/pass_at/<k>",
        "k below n under val-aux. Theirs is the mean of 1,000 draws of k samples with putting back, which is"
        " lower; ours is exact, without putting back",
    ),
    "val-core/<task>/acc/maj@<n>/mean, val-aux/<task>/acc/maj@<k>/mean": (
        "validation/task/<task>/majority_at/<k>",
        "theirs is the mean of 1,000 draws with putting back, in which the first of several answers with"
        " equally many votes wins, samples without an answer vote together, and the first sample of the winner"
        " counts; ours is over parts of k samples, and docs/algorithms.md has the rest",
    ),
    "val-aux/<task>/reward/mean@<n>": (
        "validation/task/<task>/sampled_reward/mean",
        "without samples `greedy_reward/mean`",
    ),
    TESTING: (VALIDATION_SECONDS, "in the row of the validation; theirs stands in the step's"),
}
"""Theirs -> ours, and what differs."""
AT_SIZE = re.compile(r"validation/task/(.+)/(pass_at|majority_at)/(\d+)")
MEAN_OF_TASK = re.compile(r"validation/task/(.+)/(greedy|sampled)_(reward/mean|correct/share)")


def verl_validation(values: Mapping[str, float]) -> dict[str, float]:
    """A validation's numbers by verl's names.

    Example: verl_validation({"validation/task/gsm8k/greedy_correct/share": 0.5})
    == {"val-core/gsm8k/acc/mean@1": 0.5}
    """
    sizes = [(found, value) for key, value in values.items() if (found := AT_SIZE.fullmatch(key))]
    most = max((int(found[3]) for found, _ in sizes), default=0)
    made: dict[str, float] = {}
    if VALIDATION_SECONDS in values:
        made[TESTING] = values[VALIDATION_SECONDS]
    for found, value in sizes:
        task, kind, k = found[1], found[2], int(found[3])
        if k == 1:
            made[f"{LARGEST}/{task}/{CORRECT}/mean@{most}"] = value
        if k > 1:
            section = LARGEST if k == most else SMALLER
            theirs = "best" if kind == "pass_at" else "maj"
            made[f"{section}/{task}/{CORRECT}/{theirs}@{k}/mean"] = value
    for key, value in values.items():
        if (found := MEAN_OF_TASK.fullmatch(key)) and (found[2] == "sampled") == bool(most):
            if found[3] == "reward/mean":
                made[f"{SMALLER}/{found[1]}/{REWARD}/mean@{most or 1}"] = value
            else:
                made[f"{LARGEST}/{found[1]}/{CORRECT}/mean@1"] = value
    return made
