"""mathruler evaluates answers as Python; nothing but arithmetic may get there."""

from __future__ import annotations

from pathlib import Path

import pytest
from mathruler import grader

from services.reward.rules import by_mathruler


def escaped(source: str) -> str:
    """Letters cost: mathruler evaluates nothing with more than two of them, escapes have none."""
    return "".join(f"\\{ord(character):03o}" for character in source)


@pytest.fixture
def attack(tmp_path: Path) -> tuple[str, Path]:
    """An answer that makes a file, and the file. The braces upset the LaTeX reader, so that the
    escapes survive."""
    made = tmp_path / "made"
    source = f"__import__('pathlib').Path('{made}').touch()"
    return f"ln('{escaped(source)}')" + "{" * 5000, made


def test_an_answer_cannot_run_code(attack: tuple[str, Path]) -> None:
    answer, made = attack
    assert not by_mathruler.equal(answer, r"\frac{1}{2}")
    assert not made.exists()


def test_without_the_guard_it_could(
    attack: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test above stays one that can fail."""
    answer, made = attack
    monkeypatch.setattr(grader, "_sympy_parse", by_mathruler._evaluate)
    grader.grade_answer(answer, r"\frac{1}{2}")
    assert made.exists()


@pytest.mark.parametrize(
    "expression",
    [
        "(1).real",
        "(1). real",
        "(1).#\nreal",
        "ln('1')",
        'ln("1")',
        "__a",
        "a_\uff3fb",
        "e\u2179e\u217d(1)",  # exec in NFKC
        "1;2",
        "a:=1",
        "a@b",
        "\\1",
        "{1}",
        "`1`",
    ],
)
def test_what_is_not_arithmetic_is_kept_from_python(expression: str) -> None:
    assert not by_mathruler.is_arithmetic(expression)


@pytest.mark.parametrize(
    "expression",
    ["(1/2)-(0.5)", "(x_1^2+3)-(y)", "sqrt(2)*pi", "1e5-.5", "(1,2)", "5!", "|x|", "θ/2", "1.", ""],
)
def test_arithmetic_is_evaluated(expression: str) -> None:
    assert by_mathruler.is_arithmetic(expression)


def test_an_answer_that_is_kept_from_python_is_right_by_its_characters() -> None:
    assert by_mathruler.equal("f'(x)", "f'(x)")
    assert by_mathruler.equal(r"\sqrt{8}", r"2\sqrt{2}")
