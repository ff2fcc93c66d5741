"""Rules against answers judged by hand."""

from __future__ import annotations

import pytest

from services.reward.rules import RULES, check_rules, weighted_sum, worst_terms
from trimaran.errors import InputError


@pytest.mark.parametrize(
    ("rule", "text", "answer", "value"),
    [
        ("last_integer", "7", "7", 1),
        ("last_integer", "3 + 4 = 7.", "7", 1),
        ("last_integer", "3 + 4 = 7\n\nThis is 1 example", "7", 0),
        ("last_integer", "The answer is 17", "7", 0),
        ("last_integer", "1.7", "7", 0),
        ("last_integer", "7.0", "7", 1),
        ("last_integer", "It is 1,234,567!", "1234567", 1),
        ("last_integer", "1, 2, 3", "3", 1),
        ("last_integer", "1,2,3", "3", 1),
        ("last_integer", "12,34", "34", 1),
        ("last_integer", "x = -4", "-4", 1),
        ("last_integer", "9-4", "4", 1),
        ("last_integer", "(9)-4", "4", 1),
        ("last_integer", "seven", "7", 0),
        ("last_integer", "", "0", 0),
        ("last_integer", "42", "so 6 * 7 = <<6*7=42>>42\n#### 42", 1),
        ("last_integer", "9" * 60, "9" * 59 + "8", 0),
        ("final_answer", "6 * 7\n#### 42", "42", 1),
        ("final_answer", "#### $1,042 dollars", "1042", 1),
        ("final_answer", "#### 1\n#### 42", "a\n#### 42", 1),
        ("final_answer", "42", "42", 0),
        ("final_answer", "42 ####", "42", 0),
        ("final_answer", "#### 2.50", "2.5", 1),
        ("boxed_match", r"thus \boxed{\frac{1}{2}}", r"\frac{1}{2}", 1),
        ("boxed_match", r"\boxed{1} or \boxed{2}", "2", 1),
        ("boxed_match", r"\boxed{1,000}", "1000", 1),
        ("boxed_match", r"\boxed{ x + 1 }", r"so \boxed{x+1}", 1),
        ("boxed_match", r"\boxed{2", "2", 0),
        ("boxed_match", "2", "2", 0),
        ("exact_match", " yes\n", "yes", 1),
        ("exact_match", "yes.", "yes", 0),
    ],
)
def test_value(rule: str, text: str, answer: str, value: float) -> None:
    assert RULES[rule].function(text, answer, {}) == value


@pytest.mark.parametrize(
    ("rule", "answer"),
    [
        ("last_integer", "seven"),
        ("last_integer", "1.5"),
        ("final_answer", ""),
        ("boxed_match", " "),
    ],
)
def test_a_reference_that_cannot_be_used_is_refused(rule: str, answer: str) -> None:
    with pytest.raises(ValueError, match="answer"):
        RULES[rule].function("7", answer, {})


def test_an_unknown_rule_is_answered_with_the_nearest() -> None:
    check_rules(["last_integer", "exact_match"])
    with pytest.raises(InputError, match=r"reward\.rules\.last_int: .*did you mean last_integer"):
        check_rules(["last_int"])


def test_the_reward_is_the_weighted_sum() -> None:
    weights = {"last_integer": 2.0, "exact_match": -0.5}
    assert weighted_sum({"last_integer": 1.0, "exact_match": 1.0}, weights) == 1.5


def test_the_worst_reward_counts_a_penalty_as_given() -> None:
    weights = {"last_integer": 2.0, "exact_match": -0.5}
    assert weighted_sum(worst_terms(weights), weights) == -0.5
