"""Rules that compare texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from services.reward.rules.number_reading import bare_number
from services.reward.rules.predictions import compact, voting
from services.reward.rules.registry import Options
from services.reward.rules.texts import as_seen, last_box, reference_of, shown
from trimaran.rewards import ReferenceUnusableError, Sample

MAX_PATTERN = 10_000
AFTER_SIGN = re.compile(r"^-\s+")
BETWEEN_DIGITS = re.compile(r"(?<=[0-9])\s+(?=[0-9])")


def exact_match(sample: Sample) -> Mapping[str, Any]:
    """1 when the text is the reference, white space at the ends aside."""
    expected = sample.answer.strip()
    if not expected:
        raise ReferenceUnusableError("the answer is empty")
    return voting(sample.text.strip() == expected, sample.text)


def boxed_match(sample: Sample) -> Mapping[str, Any]:
    r"""1 when the last \boxed{…} holds the reference: the same number, or the same characters
    when spaces are left out. The reference may stand in a box of its own."""
    expected = _plain(reference_of(sample.answer))
    box = last_box(sample.text)
    if box is None:
        return voting(0.0, None)
    given = _plain(box)
    number = bare_number(expected)
    same_number = number is not None and bare_number(given) == number
    right = same_number or _without_spaces(given) == _without_spaces(expected)
    return voting(right, compact(box))


def regular_expression(sample: Sample, pattern: str | None = None, mode: str = "search") -> float:
    """1 when the pattern matches: somewhere in the text (search), or all of it (fullmatch).

    The pattern is the option's, or else the reference. White space at the ends is left out.
    """
    compiled = _compile(sample.answer if pattern is None else pattern)
    match = compiled.fullmatch if mode == "fullmatch" else compiled.search
    return float(match(sample.text.strip()) is not None)


def is_pattern(pattern: object) -> bool:
    try:
        return isinstance(pattern, str) and bool(_compile(pattern))
    except ReferenceUnusableError:
        return False


def check_pattern(answer: str, options: Options) -> None:
    if "pattern" not in options:
        _compile(answer)


def _compile(pattern: str) -> re.Pattern[str]:
    if not pattern:
        raise ReferenceUnusableError("the pattern is empty")
    if len(pattern) > MAX_PATTERN:
        raise ReferenceUnusableError(f"the pattern has more than {MAX_PATTERN} characters")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ReferenceUnusableError(f"the pattern {shown(pattern)}: {error}") from None


def _plain(text: str) -> str:
    text = as_seen(text).replace("$", "").replace("\\!", "").strip()
    return AFTER_SIGN.sub("-", text)


def _without_spaces(text: str) -> str:
    return "".join(BETWEEN_DIGITS.sub("~", text).split())  # "4 2" is not 42
