"""Rules that compare numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from services.reward.rules.number_reading import last_number, only_number, plain_number
from services.reward.rules.predictions import WIDE, voting
from services.reward.rules.registry import Options
from services.reward.rules.texts import FINAL_MARK, references_of, shown
from trimaran.rewards import ReferenceUnusableError, Sample

GSM8K_TAIL = 300
"""Characters that verl's gsm8k reads."""
STRICT_START = re.compile(r" [-\u2212]?[0-9.,]")


def last_integer(sample: Sample) -> Mapping[str, Any]:
    """1 when the last number in the text is the reference, an integer.

    Thousands commas are allowed; 7.0 is 7, and 1.7 is neither 1 nor 7.
    """
    expected = _integer(sample.answer)
    given = last_number(sample.text)
    return voting(given == expected, given)


def final_answer(sample: Sample) -> Mapping[str, Any]:
    """1 when the text ends its solution as GSM8K does, with "#### <number>", and it is right.

    On its line the number is the only one.
    """
    expected = _number(sample.answer)
    _before, mark, behind = sample.text.rpartition(FINAL_MARK)
    given = only_number(_first_line(behind)) if mark else None
    return voting(given == expected, given)


def gsm8k(sample: Sample, method: str = "strict") -> Mapping[str, Any]:
    """1 when the last "#### <number>" (strict) or the last number (flexible) is right.

    As verl (verl/utils/reward_score/gsm8k.py) only the last 300 characters are read, and strict
    wants the number right behind the mark and a space.
    """
    expected = _number(sample.answer)
    if method == "flexible":
        given = last_number(sample.text, within=GSM8K_TAIL)
    else:
        given = _strict_number(sample.text)
    return voting(given == expected, given)


def numeric_match(
    sample: Sample, absolute: float = 1e-6, relative: float = 0.0
) -> Mapping[str, Any]:
    """1 when the last number of the text is within max(absolute, relative x |reference|) of the
    reference. 6.02e23 is a number."""
    expected = _number(sample.answer)
    given = last_number(sample.text)
    right = given is not None and _close(given, expected, absolute, relative)
    return voting(right, given)


def _strict_number(text: str) -> Decimal | None:
    """Right behind the last mark and a space."""
    _before, mark, behind = text[-GSM8K_TAIL:].rpartition(FINAL_MARK)
    if not mark or not STRICT_START.match(behind):
        return None
    return only_number(_first_line(behind))


def check_integer(answer: str, options: Options) -> None:
    _integer(answer)


def check_number(answer: str, options: Options) -> None:
    _number(answer)


def _close(given: Decimal, expected: Decimal, absolute: float, relative: float) -> bool:
    tolerance = max(Decimal(absolute), WIDE.multiply(Decimal(relative), WIDE.abs(expected)))
    return given == expected or WIDE.abs(WIDE.subtract(given, expected)) <= tolerance


def _first_line(text: str) -> str:
    return text.lstrip().partition("\n")[0]


def _integer(answer: str) -> Decimal:
    expected = _number(answer)
    if expected != expected.to_integral_value():
        raise ReferenceUnusableError(f"the answer {shown(answer)} is not an integer")
    return expected


def _number(answer: str) -> Decimal:
    """Several boxes may hold the same number in several forms."""
    found = {plain_number(reference) for reference in references_of(answer)}
    number = found.pop()
    if number is None or found:
        raise ReferenceUnusableError(
            f"the answer {shown(answer)} is not one plain number;"
            " write the number alone, behind #### or in a box"
        )
    return number
