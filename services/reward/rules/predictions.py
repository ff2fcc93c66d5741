"""Judgements with what the answer says in the end: by these texts answers vote (majority@k).

Two ways of writing one value, such as 1/2 and 0.5, are two texts; plain numbers are brought to one
form, in a box too.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from services.reward.rules.number_reading import bare_number

MOST_DIGITS = 40
"""The digits of a number that is written out, before its point or behind it; longer ones have an exponent."""

# Numbers of a million digits are compared, not refused.
WIDE = decimal.Context(prec=50, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])


def voting(
    score: float, read: str | Decimal | None, parts: Mapping[str, float] | None = None
) -> Mapping[str, Any]:
    """`read`: what the rule took for the final answer; None where it found none.

    Example: voting(True, Decimal("42.0")) == {"score": 1.0, "pred": "42"}
    """
    text = _written(read) if isinstance(read, Decimal) else read
    return {"score": float(score), **(parts or {}), "pred": text}


def compact(text: str | None) -> str | None:
    """Without white space; a plain number in its one form, since it may stand in a box in one answer
    and in none in the next."""
    if text is None:
        return None
    short = "".join(text.split())
    number = bare_number(short)
    return short if number is None else _written(number)


def _written(value: Decimal) -> str:
    """7.0 as 7, and 1,000 as 1000; a number of a million digits stays short."""
    short = WIDE.plus(value).normalize(WIDE)
    return f"{short:f}" if abs(short.adjusted()) < MOST_DIGITS else str(short)
