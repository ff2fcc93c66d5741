"""Rules that compare numbers."""

from __future__ import annotations

import decimal
import re
from decimal import Decimal

from services.reward.rules.number_reading import last_number, only_number, plain_number
from services.reward.rules.registry import Options
from services.reward.rules.texts import FINAL_MARK, references_of, shown
from trimaran.rewards import ReferenceUnusableError, Sample

GSM8K_TAIL = 300
"""Characters that verl's gsm8k reads."""
STRICT_START = re.compile(r" [-\u2212]?[0-9.,]")

# Numbers of a million digits are compared, not refused.
WIDE = decimal.Context(prec=50, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


def last_integer(sample: Sample) -> float:
    """1 when the last number in the text is the reference, an integer.

    Thousands commas are allowed; 7.0 is 7, and 1.7 is neither 1 nor 7.
    """
    return float(last_number(sample.text) == _integer(sample.answer))


def final_answer(sample: Sample) -> float:
    """1 when the text ends its solution as GSM8K does, with "#### <number>", and it is right.

    On its line the number is the only one.
    """
    expected = _number(sample.answer)
    _before, mark, behind = sample.text.rpartition(FINAL_MARK)
    return float(bool(mark) and only_number(first_line(behind)) == expected)


def gsm8k(sample: Sample, method: str = "strict") -> float:
    """1 when the last "#### <number>" (strict) or the last number (flexible) is right.

    As verl (verl/utils/reward_score/gsm8k.py) only the last 300 characters are read, and strict
    wants the number right behind the mark and a space.
    """
    expected = _number(sample.answer)
    if method == "flexible":
        return float(last_number(sample.text, within=GSM8K_TAIL) == expected)
    return float(strict_number(sample.text) == expected)


def numeric_match(sample: Sample, absolute: float = 1e-6, relative: float = 0.0) -> float:
    """1 when the last number of the text is within max(absolute, relative x |reference|) of the
    reference. 6.02e23 is a number."""
    expected = _number(sample.answer)
    given = last_number(sample.text)
    return float(given is not None and _close(given, expected, absolute, relative))


def strict_number(text: str) -> Decimal | None:
    """Right behind the last mark and a space."""
    _before, mark, behind = text[-GSM8K_TAIL:].rpartition(FINAL_MARK)
    if not mark or not STRICT_START.match(behind):
        return None
    return only_number(first_line(behind))


def check_integer(answer: str, options: Options) -> None:
    _integer(answer)


def check_number(answer: str, options: Options) -> None:
    _number(answer)


def _close(given: Decimal, expected: Decimal, absolute: float, relative: float) -> bool:
    tolerance = max(Decimal(absolute), WIDE.multiply(Decimal(relative), WIDE.abs(expected)))
    return given == expected or WIDE.abs(WIDE.subtract(given, expected)) <= tolerance


def first_line(text: str) -> str:
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
