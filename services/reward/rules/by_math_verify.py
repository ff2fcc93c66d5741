"""Equality as math-verify sees it (https://github.com/huggingface/Math-Verify).

Its own time limits are off: they use signals, and the pool ends a worker that takes too long.

Its comparisons subtract the answer from the reference, or merge sets of them, and infinity
swallows whatever it meets there. So each of them is asked only where `_comparable` holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import sympy
from math_verify import LatexExtractionConfig, grader, parse, verify
from sympy.core.random import seed
from sympy.core.relational import Relational

from services.reward.rules.texts import shown
from services.reward.rules.values import near, value
from trimaran.rewards import ReferenceUnusableError

ENDS = (sympy.oo, -sympy.oo)
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


def _comparable(gold: Any, answer: Any) -> bool:
    """Numbers have the same value, collections hold the same values, and all that stands in
    anything else has a value or is an infinite end."""
    if _is_number(gold) and _is_number(answer):
        return True
    if _is_scalar(gold) and _is_scalar(answer):
        return near(gold, answer)
    elements, others = _elements(gold), _elements(answer)
    if elements and others:
        return len(elements) == len(others) and all(
            any(a == b or _comparable(b, a) for b in elements) for a in others
        )
    return _is_finite(answer)


def _is_number(x: Any) -> bool:
    """Written out, a percentage too: math-verify takes 25% for 0.25 and for 25."""
    return grader.is_atomic_or_pct_atomic(x, (sympy.Rational, sympy.Float))  # pyright: ignore


def _is_scalar(x: Any) -> bool:
    return isinstance(x, sympy.Expr) and not isinstance(x, sympy.MatrixExpr | sympy.MatrixBase)


def _elements(x: Any) -> list[Any]:
    """The elements of a matrix, a tuple or a finite set, or of the set that math-verify makes of a number."""
    if isinstance(x, sympy.MatrixExpr):
        x = x.doit()
    if isinstance(x, sympy.MatrixBase):
        return x.flat()
    if isinstance(x, sympy.Tuple | sympy.FiniteSet):
        return list(x.args)
    return [x] if _is_scalar(x) else []


def _is_finite(x: Any) -> bool:
    """Infinity may be an end of an interval, and no point of a union."""
    if _is_scalar(x):
        return x in ENDS or value(x) is not None
    if isinstance(x, sympy.Union):
        points = [one for part in x.args for one in _elements(part)]
        return not any(one in ENDS for one in points) and all(map(_is_finite, x.args))
    if isinstance(x, sympy.MatrixExpr | sympy.MatrixBase):
        return all(map(_is_finite, _elements(x)))
    return isinstance(x, sympy.Basic) and all(map(_is_finite, x.args))


def _guarded(compare: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(compare)
    def guarded(gold: Any, pred: Any, *precision: int) -> bool:
        if not (_is_number(gold) and _is_number(pred)):
            seed(0)  # sympy draws lots, also in its questions about signs
        return _comparable(gold, pred) and compare(gold, pred, *precision)

    return guarded


def _solve(relation: Relational, symbols: Any) -> Any:
    """Two equations without a solution are not the same equation."""
    solutions = sympy.solve(relation, symbols)
    if not solutions:
        raise ValueError("no solution")  # math-verify takes it for "not equal"
    return solutions


for _name in (
    "sympy_numeric_eq",
    "sympy_symbolic_eq",
    "sympy_compare_sets",
    "sympy_solve_and_compare",
):
    setattr(grader, _name, _guarded(getattr(grader, _name)))
grader.solve = _solve
