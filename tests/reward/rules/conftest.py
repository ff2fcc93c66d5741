from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
from math_verify import grader

from services.reward.rules import by_math_verify, by_mathruler


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The answers that the libraries are given. A checker of ours stands in for them, and takes none for right."""
    answers: list[str] = []

    def judge_nothing(answer: str, reference: str) -> bool:
        answers.append(answer)
        return False

    for module, name in (
        (by_math_verify, "equal"),
        (by_math_verify, "concludes"),
        (by_mathruler, "equal"),
    ):
        monkeypatch.setattr(module, name, judge_nothing)
    return answers


ENDS = (sympy.oo, -sympy.oo)


def is_infinite(expression: Any) -> bool:
    """Somewhere, but not as the end of an interval."""
    if expression in (*ENDS, sympy.zoo, sympy.nan):
        return True
    parts = getattr(expression, "args", ())
    if isinstance(expression, sympy.Interval | sympy.Tuple):
        parts = [part for part in parts if part not in ENDS]
    return any(map(is_infinite, parts))


def credulous(compare: Callable[..., bool]) -> Callable[..., bool]:
    """To which whatever is infinite is equal to everything."""
    return lambda gold, answer, *rest: is_infinite(answer) or compare(gold, answer, *rest)


@pytest.fixture(params=["math-verify", "mathruler"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its name; the library itself is credulous."""
    for name in (
        "sympy_numeric_eq",
        "sympy_symbolic_eq",
        "sympy_compare_sets",
        "sympy_solve_and_compare",
    ):
        compare = getattr(grader, name).__wrapped__
        monkeypatch.setattr(grader, name, by_math_verify._guarded(credulous(compare)))
    monkeypatch.setattr(sympy, "simplify", lambda expression: sympy.Integer(0))
    return request.param
