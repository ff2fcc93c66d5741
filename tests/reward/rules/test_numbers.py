"""Rules that compare numbers and texts, against answers judged by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.reward.rules.calling import score
from trimaran.rewards import ReferenceUnusableError


@pytest.mark.parametrize(
    ("rule", "text", "answer", "value"),
    [
        ("last_integer", "3 + 4 = 7\n\nThis is 1 example", "7", 0),
        ("last_integer", "٧", "7", 0),
        ("last_integer", "", "0", 0),
        ("last_integer", "42", "so 6 * 7 = <<6*7=42>>42\n#### 42", 1),
        ("last_integer", "9" * 60, "9" * 59 + "8", 0),
        ("last_integer", "9" * 5000, "9" * 5000, 1),
        ("final_answer", "#### 1\n#### 42", "a\n#### 42", 1),
        ("gsm8k", "#### 72.00 dollars", "72", 1),
        ("gsm8k", "####72", "72", 0),
        ("gsm8k", "#### ,", "1", 0),
        ("gsm8k", "#### 72" + " " * 300, "72", 0),
        ("boxed_match", r"\boxed{1} or \boxed{2}", "2", 1),
        ("boxed_match", r"\boxed{ x + 1 }", r"so \boxed{x+1}", 1),
        ("boxed_match", r"\boxed{2", "2", 0),
        ("regular_expression", "it is 142 then", r"\b42\b", 0),
    ],
)
def test_value(rule: str, text: str, answer: str, value: float) -> None:
    assert score(rule, text, answer) == value


@pytest.mark.parametrize(
    ("rule", "text", "answer", "options", "value"),
    [
        ("gsm8k", "72 of . , them", "72", {"method": "flexible"}, 1),
        ("numeric_match", "about 3.14", "3.14159265", {"absolute": 1e-4}, 0),
        ("numeric_match", "101", "100", {"relative": 0.01}, 1),
        ("numeric_match", "6.022e23", "6.02214e+23", {"relative": 1e-3}, 1),
        ("numeric_match", "9" * 5000, "9" * 5000, {"absolute": 0}, 1),
        ("numeric_match", "1" + "0" * 5000 + "e9999", "1", {"relative": 1.0}, 0),
        ("multiple_choice", "Answer: J", "J", {"choices": "ABCDEFGHIJ"}, 1),
        ("regular_expression", "abc", "", {"pattern": "b", "mode": "fullmatch"}, 0),
        ("regular_expression", " abc\n", "", {"pattern": "a.c", "mode": "fullmatch"}, 1),
    ],
)
def test_value_with_options(
    rule: str, text: str, answer: str, options: dict[str, Any], value: float
) -> None:
    assert score(rule, text, answer, **options) == value


@pytest.mark.parametrize(
    ("rule", "answer"),
    [
        ("final_answer", ""),
        ("boxed_match", r"\boxed{}"),
        ("exact_match", "\n"),
        ("regular_expression", ""),
        ("regular_expression", "(" * 5000),
        ("regular_expression", "x{99999999999999999999}"),
    ],
)
def test_a_reference_that_cannot_be_used_is_refused(rule: str, answer: str) -> None:
    with pytest.raises(ReferenceUnusableError, match=r"answer|pattern"):
        score(rule, "7", answer)
