"""Equality as math-verify sees it (https://github.com/huggingface/Math-Verify).

Its own time limits are off: they use signals, and the pool ends a worker that takes too long.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from services.reward.rules.texts import shown
from trimaran.rewards import ReferenceUnusableError

# It warns that the limits are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def equal(given: str, reference: str) -> bool:
    """Two answers, both without a box."""
    return concludes(f"\\boxed{{{given}}}", reference)


def concludes(text: str, reference: str) -> bool:
    """The text's answer, wherever math-verify finds it (a final answer, a box, the last
    expression), is the reference."""
    gold = _parse_reference(reference)
    return verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None)  # pyright: ignore


@lru_cache(maxsize=64)
def _parse_reference(reference: str) -> list[Any]:
    """All completions of a group share it."""
    boxed = f"\\boxed{{{reference}}}"
    parsed = parse(boxed, (LatexExtractionConfig(),), parsing_timeout=None)  # pyright: ignore
    if not parsed:
        raise ReferenceUnusableError(f"math-verify finds no answer in {shown(reference)}")
    return parsed
