"""How good a step is, by `run.best_by`: what decides which checkpoints are kept as the best."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from trimaran.config import RunSection
from trimaran.telemetry.metrics import is_of_validation

logger = logging.getLogger(__name__)


def score_of(run: RunSection, step: int, values: Mapping[str, float]) -> float | None:
    """More is better. None where the number is not there or not finite; a warning then, if the step was
    reported, or validated, without it.

    `values`: the step's metrics and those of its validation, as far as there are any.
    """
    key = run.best_by.removeprefix("-")
    value = values.get(key)
    if value is not None and math.isfinite(value):
        return value if key == run.best_by else -value
    if run.keep_best and any(is_of_validation(one) == is_of_validation(key) for one in values):
        logger.warning(
            "run.best_by: step %d has %s %s, so its checkpoint is not kept as one of the best",
            *(step, "no" if value is None else "a value that is not finite for", key),
        )
    return None
