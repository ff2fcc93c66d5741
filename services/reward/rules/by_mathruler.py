"""Equality as mathruler sees it (https://github.com/hiyouga/MathRuler).

It gives the answer to sympy's parse_expr, which is Python's eval, and its own check can be got
past: an answer can run Python in the worker. So what holds anything but arithmetic is kept from eval
here; it can still be right by its characters, which mathruler compares first.

mathruler evaluates the text "(reference)-(answer)". Here each side is evaluated alone: an answer
that closes the bracket, or that swallows the reference as infinity does, must not get so far.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

import sympy
from mathruler import grader
from sympy.core.random import seed

from services.reward.rules.values import near

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


def _are_equal(ground_truth_normalized: str, given_normalized: str) -> bool:
    """Both normalised by mathruler."""
    if not grader.should_allow_eval(f"({ground_truth_normalized})-({given_normalized})"):
        return False
    seed(0)  # sympy draws lots, also in its questions about signs
    try:
        gold = _evaluate_reference(ground_truth_normalized)
        given = grader._sympy_parse(given_normalized)
        return _are_scalars(gold, given) and near(gold, given) and sympy.simplify(gold - given) == 0
    except MemoryError:
        raise
    except Exception:  # Python may raise anything at such a text; mathruler catches all as well
        return False


@lru_cache(maxsize=64)
def _evaluate_reference(normalized: str) -> Any:
    """All completions of a group share it."""
    return grader._sympy_parse(normalized)


def _are_scalars(*expressions: Any) -> bool:
    return all(isinstance(x, sympy.Expr) and x.is_commutative for x in expressions)


grader._sympy_parse = _evaluate_arithmetic
grader.are_equal_under_sympy = _are_equal
