"""By which number of a run its best checkpoints are chosen: the key, and whether a run makes it."""

from __future__ import annotations

from collections.abc import Sequence

from trimaran.errors import did_you_mean
from trimaran.metrics import (
    GREEDY_REWARD,
    METRICS,
    REWARD_MEAN,
    SAMPLED_REWARD,
    Metric,
    sizes_up_to,
)

SHORT = {"greedy": GREEDY_REWARD, "sampled": SAMPLED_REWARD}
DRAWN = ("sampled_reward", "pass_at", "majority_at")
"""What a validation knows of several samples of a prompt."""


def check_best_by(key: str) -> str:
    """The whole key. Raises ValueError where no metric is called so."""
    key = SHORT.get(key, key)
    if "<" not in key and _find(key):
        return key
    hint = did_you_mean(key, [*SHORT, *(metric.key for metric in METRICS)])
    raise ValueError(
        f"{key!r} is no metric{hint}; docs/metrics.md has them, such as {GREEDY_REWARD} and {REWARD_MEAN}. What"
        " stands there in angle brackets is a name or a number here"
    )


def is_of_validation(key: str) -> bool:
    """And not of the step."""
    return key.startswith("validation/")


def check_is_made(key: str, num_samples: int, rules: Sequence[str]) -> None:
    """`num_samples`: of a prompt, in validations on the way. `rules`: names under `reward.rules`.

    Raises ValueError where no step of the run can have the metric. One that depends on what only the run
    shows, such as a task's name in the data, passes.
    """
    metric = _find(key)
    assert metric, key
    names = dict(zip(metric.axes, metric.names_in(key), strict=True))
    if any(part in DRAWN for part in key.split("/")) and not num_samples:
        raise ValueError(
            f"run.best_by: {key}, and validation.samples is 0; give 1 or more, or take {GREEDY_REWARD}"
        )
    sizes = [str(size) for size in sizes_up_to(num_samples)]
    if "k" in names and names["k"] not in sizes:
        raise ValueError(
            f"run.best_by: {key}: with validation.samples {num_samples} there are k = {', '.join(sizes)}"
        )
    if "term" in names and names["term"].partition(".")[0] not in rules:
        raise ValueError(f"run.best_by: {key} is of none of reward.rules ({', '.join(rules)})")


def _find(key: str) -> Metric | None:
    return next((metric for metric in METRICS if metric.has(key)), None)
