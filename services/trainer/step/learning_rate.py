"""The learning rate of a step."""

from __future__ import annotations

import math

from trimaran.config import TrainerSection


def learning_rate(section: TrainerSection, step: int, num_steps: int) -> float:
    """Linear warm-up over the first `warmup_steps` steps, then by `schedule` down to
    `min_learning_rate` at the last step. Steps count from 1.

    Example: learning_rate(TrainerSection(learning_rate=1e-6, warmup_steps=10), 5, 100) == 5e-7
    """
    peak, least, warmup = section.learning_rate, section.min_learning_rate, section.warmup_steps
    if step < warmup:
        return peak * step / warmup
    # 1 where the warm-up ends, 0 at the last step; a longer run stays at the least.
    left = max(num_steps - step, 0) / max(num_steps - warmup, 1)
    if section.schedule == "linear":
        return least + (peak - least) * min(left, 1.0)
    if section.schedule == "cosine":
        return least + (peak - least) * (1 - math.cos(math.pi * min(left, 1.0))) / 2
    return peak
