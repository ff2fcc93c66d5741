"""Rules that compare texts."""

from __future__ import annotations

import re

from services.reward.rules.registry import Options
from services.reward.rules.texts import (
    NUMBER,
    last_box,
    last_match,
    reference_of,
    shown,
    to_decimal,
)
from trimaran.rewards import ReferenceUnusableError, Sample

MAX_PATTERN = 10_000

LETTER = re.compile(r"[($\s]*([A-Z])[)$.\s]*")
# Every repetition is bounded, so that white space without end costs nothing.
CHOICE = re.compile(
    r"(?:(?i:answer)(?:\s{1,8}is)?\s{0,8}:?|\\boxed\{)"
    r"(?:[\s*$(\[:]|\\\(|\\(?:boxed|text|textbf|mathrm|mathbf)\{){0,8}"
    r"([A-Z])(?!\w)"
)


def exact_match(sample: Sample) -> float:
    """1 when the text is the reference, white space at the ends aside."""
    expected = sample.answer.strip()
    if not expected:
        raise ReferenceUnusableError("the answer is empty")
    return float(sample.text.strip() == expected)


def boxed_match(sample: Sample) -> float:
    r"""1 when the last \boxed{…} holds the reference: the same number, or the same characters
    when spaces are left out. The reference may stand in a box of its own."""
    expected = _plain(reference_of(sample.answer))
    given = last_box(sample.text)
    return float(given is not None and _same(_plain(given), expected))


def multiple_choice(sample: Sample, choices: str = "ABCDE") -> float:
    r"""1 when the last letter that the text gives as its answer is the reference's.

    An answer reads "answer is (B)", "Answer: B" or \boxed{B}, or is the letter alone. The
    reference is the letter, alone or in any of these forms.
    """
    expected = _letter(sample.answer)
    if expected is None or expected not in choices:
        raise ReferenceUnusableError(f"the answer {shown(sample.answer)} is none of {choices}")
    return float(_letter(sample.text) == expected)


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


def is_choices(choices: object) -> bool:
    return isinstance(choices, str) and bool(re.fullmatch(r"[A-Z]{2,26}", choices))


def check_letter(answer: str, options: Options) -> None:
    choices = options.get("choices", "ABCDE")
    multiple_choice(Sample(text="", answer=answer), choices)


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


def _letter(text: str) -> str | None:
    given = LETTER.fullmatch(text[:16]) if len(text) <= 16 else None
    given = given or last_match(CHOICE, text)
    return given.group(1) if given else None


def _plain(text: str) -> str:
    return "".join(text.replace("$", "").replace("\\!", "").split())


def _same(given: str, expected: str) -> bool:
    if NUMBER.fullmatch(given) and NUMBER.fullmatch(expected):
        return to_decimal(given) == to_decimal(expected)
    return given == expected
