"""What the kit asks, and how it compares."""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.reward.plugins.contract import PluginMessage, PluginSample

TOLERANCE = 1e-6
"""Relative and absolute: arithmetic in another order is no other score."""


def sample(text: str, answer: str = "7", index: int = 0) -> PluginSample:
    question = PluginMessage(role="user", content="What is 3 + 4?")
    return PluginSample(
        messages=[question],
        text=text,
        answer=answer,
        prompt_id=f"check-{index}",
        num_tokens=len(text.split()),
    )


TEXTS = (
    "7",
    "8",
    "The sum of 3 and 4 is 7.",
    "It is 12, I believe.",
    "3 + 4 = 7\n#### 7",
    "\\boxed{7}",
    "So the result is \\boxed{9}.",
    "<think>3 + 4 makes 7</think><answer>\\boxed{7}</answer>",
    "Answer: 7",
    "I do not know; " + "let me think about it once more. " * 20,
)
"""Right and wrong, short and long, in the forms that rules look for: most rules tell some apart."""
SAMPLES = tuple(sample(text, index=index) for index, text in enumerate(TEXTS))


def first_difference(first: Sequence[float | None], second: Sequence[float | None]) -> str | None:
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        same = one == other
        if one is not None and other is not None:
            same = math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        if not same:
            return f"sample {index} gets {other} rather than {one}"
    return None
