"""What stands before math-verify and mathruler, tested with checkers of ours in their place: one that says
yes, one that draws lots, one that only notes what it is asked. None of these answers harms a library."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import sympy
from hypothesis import assume, given
from hypothesis import strategies as st
from mathruler import grader
from sympy.core.random import rng

from services.reward.rules import by_math_verify, by_mathruler
from services.reward.rules.values import MAX_EXPONENT, value
from tests.reward.rules.calling import score

# --- what mathruler gives to Python

PIECES = ["12", "0.5", "x", "y_1", "θ", *"+-*/^()[],!| "]
ARITHMETIC = st.lists(st.sampled_from(PIECES), min_size=1).map("".join)
FOREIGN = st.characters(
    exclude_categories=["L", "M", "N", "Pc"], exclude_characters="+-*/^()[],=<>!|. "
)
LOOKALIKE = st.characters(categories=["L", "N", "Pc"]).filter(
    lambda c: not unicodedata.is_normalized("NFKC", c)
)
"""Characters that Python reads as others."""
ATTRIBUTE = st.builds("x.{}{}".format, st.text(" ", max_size=2), st.characters(categories=["L"]))


@given(ARITHMETIC, FOREIGN | LOOKALIKE | ATTRIBUTE | st.just("__"), ARITHMETIC)
def test_arithmetic_alone_is_evaluated(before: str, other: str, behind: str) -> None:
    assert by_mathruler.is_arithmetic(before) and by_mathruler.is_arithmetic(behind)
    assert not by_mathruler.is_arithmetic(before + other + behind)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What mathruler would have Python evaluate; nothing is."""
    seen: list[str] = []

    def note(expression: str) -> sympy.Expr:
        seen.append(expression)
        return sympy.Integer(len(seen))

    by_mathruler._evaluate_reference.cache_clear()
    monkeypatch.setattr(by_mathruler, "_evaluate", note)
    return seen


@pytest.mark.parametrize("judge", [by_mathruler.equal, grader.grade_answer])
def test_python_is_given_arithmetic_alone(
    judge: Callable[[str, str], bool], evaluated: list[str]
) -> None:
    """Also by a function of a user's own that calls mathruler."""
    for mark in "'\"`;@#":
        assert not judge(f"2.5{mark}", "x+1")
    assert judge("f'(x)", "f'(x)")  # by its characters
    assert evaluated == ["x+1"]  # once: it is the same reference
    judge("y-2", "x+2")
    assert evaluated == ["x+1", "x+2", "y-2"], "answer and reference apart"


# --- values


X, F = sympy.Symbol("x"), sympy.Function("f")


def unevaluated(operation: Any, *arguments: Any) -> Any:
    return operation(*arguments, evaluate=False)


@pytest.mark.parametrize(
    "expression",
    [
        sympy.oo,
        sympy.zoo,
        sympy.nan,
        unevaluated(sympy.Add, X, sympy.oo),
        unevaluated(sympy.Mul, 0, sympy.oo),
        unevaluated(sympy.Pow, 2, MAX_EXPONENT * 2),
        unevaluated(sympy.exp, MAX_EXPONENT * 2),
        unevaluated(sympy.Add, 10**80, sympy.sqrt(2), -(10**80)),  # its digits cancel
        sympy.true,
    ],
)
def test_what_has_no_value(expression: Any) -> None:
    assert value(expression) is None


def test_what_has_one() -> None:
    half = value(unevaluated(sympy.Mul, sympy.sqrt(8), 1 / sympy.sqrt(32)))
    assert half is not None and abs(half - sympy.Rational(1, 2)) < 1e-50
    for one, other in ((X + X, 2 * X), (F(X + X), F(2 * X))):
        first, second = value(one), value(other)
        assert first is not None and second is not None and abs(first - second) < 1e-50


# --- a library that says yes


INFINITE = [r"\infty", r"-\infty", r"\infty+1", r"\frac{1}{0}", r"x+\infty"]
SHAPES = {
    "{0}": [r"\frac{1}{2}", r"\sqrt{2}", "0.25", "x+5"],
    r"(1,{0})": ["(1,2)"],
    r"\{{1,{0}\}}": [r"\{1,2\}"],
    r"[{0},{0}]": ["[3,4]"],
    r"\begin{{pmatrix}}1\\{0}\end{{pmatrix}}": [r"\begin{pmatrix}1\\2\end{pmatrix}"],
    r"y=({0})x": ["y=2x"],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_infinite_equals_nothing_finite(library: str, shape: str) -> None:
    for infinite, reference in itertools.product(INFINITE, SHAPES[shape]):
        answer = rf"\boxed{{{shape.format(infinite)}}}"
        assert score("acc", answer, reference, library=library) < 1, (answer, reference)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("library", ["mathruler"], indirect=True)
def test_what_differs_in_value_is_not_simplified() -> None:
    assert not by_mathruler.equal("x+1", "x+2")
    assert by_mathruler.equal("x+x", "2x")


def test_equations_without_a_solution_are_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """To sympy as it is here no equation has one."""
    monkeypatch.setattr(sympy, "solve", lambda *_: [])
    assert score("math_verify", r"\boxed{2y=x+1}", "y=3x+7") == 0


# --- lots


@given(st.integers(1, 1000))
def test_what_draws_lots_draws_the_same_ones(number: int) -> None:
    """sympy's own generator, from wherever it stands."""
    guarded = by_math_verify._guarded(lambda *_: rng.random() < 0.5)
    pair = sympy.sqrt(number), sympy.sqrt(4 * number) / 2
    assume(not pair[0].is_Rational)
    assert len({guarded(*pair) for _ in range(20)}) == 1


def test_mathruler_draws_the_same_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sympy, "simplify", lambda _: sympy.Integer(rng.randint(0, 1)))
    assert len({by_mathruler.equal("x+x+1", "2x+1") for _ in range(20)}) == 1
