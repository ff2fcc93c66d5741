"""Rules that compare numbers."""

from __future__ import annotations

import decimal
import re
from decimal import Decimal

from services.reward.rules.registry import Options
from services.reward.rules.texts import (
    FINAL_MARK,
    NUMBER,
    last_match,
    last_number,
    shown,
    to_decimal,
)
from trimaran.rewards import ReferenceUnusableError, Sample

SCIENTIFIC = re.compile(NUMBER.pattern + r"(?:[eE][+-]?[0-9]{1,4}(?![0-9]))?")
GSM8K_FINAL = re.compile(rf"{FINAL_MARK} (-?[0-9.,]+)")
GSM8K_ANY = re.compile(r"-?[0-9.,]*[0-9][0-9.,]*")
GSM8K_TAIL = 300
"""Characters that verl's gsm8k reads."""

# Numbers of a million digits are compared, not refused.
WIDE = decimal.Context(prec=50, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


def last_integer(sample: Sample) -> float:
    """1 when the last number in the text is the last integer of the reference.

    Thousands commas are allowed; 7.0 is 7, and 1.7 is neither 1 nor 7.
    """
    expected = _integer(sample.answer)
    return float(last_number(sample.text) == expected)


def final_answer(sample: Sample) -> float:
    """1 when the text ends its solution as GSM8K does, with "#### <number>", and it is right.

    The reference may be the number alone or a whole GSM8K solution.
    """
    expected = _number(sample.answer)
    _before, mark, behind = sample.text.rpartition(FINAL_MARK)
    given = NUMBER.search(behind) if mark else None
    return float(given is not None and to_decimal(given.group()) == expected)


def gsm8k(sample: Sample, method: str = "strict") -> float:
    """1 when the last "#### <number>" (strict) or the last number (flexible) is right.

    As verl (verl/utils/reward_score/gsm8k.py) only the last 300 characters are read; numbers are
    compared, not their characters, so that "72." and "72.00" are 72.
    """
    expected = _number(sample.answer)
    tail = sample.text[-GSM8K_TAIL:]
    given = last_match(GSM8K_FINAL if method == "strict" else GSM8K_ANY, tail)
    if given is None:
        return 0.0
    try:
        return float(to_decimal(given.group(given.lastindex or 0)) == expected)
    except decimal.InvalidOperation:  # 1.2.3
        return 0.0


def numeric_match(sample: Sample, absolute: float = 1e-6, relative: float = 0.0) -> float:
    """1 when the last number of the text is within max(absolute, relative x |reference|) of the
    last number of the reference. 6.02e23 is a number."""
    expected = last_match(SCIENTIFIC, sample.answer)
    if expected is None:
        raise _no_number(sample.answer)
    given = last_match(SCIENTIFIC, sample.text)
    return float(given is not None and _close(given.group(), expected.group(), absolute, relative))


def check_integer(answer: str, options: Options) -> None:
    _integer(answer)


def check_number(answer: str, options: Options) -> None:
    _number(answer)


def _close(given: str, expected: str, absolute: float, relative: float) -> bool:
    a, b = to_decimal(given), to_decimal(expected)
    tolerance = max(Decimal(absolute), WIDE.multiply(Decimal(relative), WIDE.abs(b)))
    return a == b or WIDE.abs(WIDE.subtract(a, b)) <= tolerance


def _integer(answer: str) -> Decimal:
    expected = last_number(answer)
    if expected is None or expected != expected.to_integral_value():
        raise ReferenceUnusableError(f"the answer {shown(answer)} does not end in an integer")
    return expected


def _number(answer: str) -> Decimal:
    expected = last_number(answer)
    if expected is None:
        raise _no_number(answer)
    return expected


def _no_number(answer: str) -> ReferenceUnusableError:
    return ReferenceUnusableError(f"the answer {shown(answer)} holds no number")
