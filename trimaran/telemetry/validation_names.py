"""verl's names of a validation's numbers, as its verl/trainer/ppo/metric_utils.py and ray_trainer.py give them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trimaran.telemetry.metrics import VALIDATION_SECONDS

CORRECT, REWARD, LARGEST, SMALLER = "acc", "reward", "val-core", "val-aux"
"""verl files what is of all samples of a prompt under val-core, and what is of fewer under val-aux."""
TESTING = "timing_s/testing"
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
