"""Equality as mathruler sees it (https://github.com/hiyouga/MathRuler).

It gives the answer to sympy's parse_expr, which is Python's eval: an answer such as
ln('…escaped Python…'), with enough open braces to upset the LaTeX reader, runs its text in the
worker. So what holds anything but arithmetic is kept from eval here; it can still be right by its
characters, which mathruler compares first.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from mathruler import grader

# Quotes, "__", an attribute ("x.name"), comments, line ends: whatever arithmetic does not need.
NOT_ARITHMETIC = re.compile(r"[^\w+\-*/^()\[\],=<>!|. ]|__|\. *[^\W\d]")

_evaluate = grader._sympy_parse


def equal(given: str, reference: str) -> bool:
    """Two answers, both without a box."""
    return grader.grade_answer(given, reference)


def is_arithmetic(expression: str) -> bool:
    """Python reads identifiers in NFKC: ⅽ is c there, and ＿ is _."""
    return (
        unicodedata.is_normalized("NFKC", expression) and NOT_ARITHMETIC.search(expression) is None
    )


def _evaluate_arithmetic(expr: str) -> Any:
    if not is_arithmetic(expr):
        raise ValueError("not arithmetic")  # mathruler takes it for "not equal"
    return _evaluate(expr)


grader._sympy_parse = _evaluate_arithmetic
