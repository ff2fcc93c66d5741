"""What each rule reads as the final answer: the text by which answers vote."""

from __future__ import annotations

from typing import Any

import pytest

from services.reward.functions.loading import load_function
from services.reward.functions.returned import MAX_CHARACTERS, as_vote, read_one
from services.reward.outcome import Value
from services.reward.rules import RULES
from services.reward.terms import rule_function
from trimaran.rewards import Sample

CASES = [
    ("last_integer", "I do not know.", ""),
    ("numeric_match", "So 0.50", "0.5"),
    ("final_answer", "3 + 4\n#### 7", "7"),
    ("final_answer", "it is 7", ""),
    ("gsm8k", "#### about 7", ""),
    ("exact_match", " 7 ", "7"),
    ("boxed_equal", r"\boxed{\frac{1} {2}}", r"\frac{1}{2}"),
    ("math", "none", ""),
    ("r1v", "<answer> 7 </answer>", "7"),
    ("r1v", "7", "7"),
    ("acc", r"boxed 7$ and", "7"),
    ("math_verify", r"a \boxed{7} in 3 ways", "7"),
    # However it is written: one value has one vote.
    ("math_verify", "the answer is 1,200", "1200"),
    ("math_verify", "so\n#### 1,200", "1200"),
    ("geo3k", r"\boxed{10}", "10"),
    ("last_integer", "It is 1" + 50 * "0", "1E+50"),
    ("numeric_match", "It is 0.00010", "0.0001"),
    ("acc_for_dapo", "Answer: 7 cm", "7"),
    ("dapo", "Answer: $7$", "7"),
    ("retool_reward", r"\boxed{7}", "7"),
    ("multiple_choice", "The answer is (B).", "B"),
    ("multiple_choice", "A or B", ""),
]


def predicted(rule: str, text: str) -> str | None:
    sample = Sample(text, "B" if rule == "multiple_choice" else "7")
    spec = rule_function(RULES[rule], {"max_tokens": 8} if rule == "dapo" else {})
    [outcome] = load_function(spec).judge_batch([sample])
    assert isinstance(outcome, Value)
    return outcome.prediction


@pytest.mark.parametrize(("rule", "text", "wanted"), CASES)
def test_a_rule_reads_what_it_judges(rule: str, text: str, wanted: str) -> None:
    assert predicted(rule, text) == wanted


STRANGE = ["", "\ud800", "#### ", "\\boxed{", "boxed", "9" * 10_000, "Answer:", "1e999999"]


@pytest.mark.parametrize("rule", sorted({rule for rule, _, _ in CASES}))
def test_whatever_a_text_holds_reading_it_fails_nothing(rule: str) -> None:
    """It would count as the answer's own fault."""
    for text in STRANGE:
        found = predicted(rule, text)
        assert found is not None and len(found.encode()) <= 4 * MAX_CHARACTERS


def test_long_answers_that_differ_at_their_end_are_two() -> None:
    first, second = as_vote("x" * 5000 + "a"), as_vote("x" * 5000 + "b")
    assert first != second
    assert len(first) == len(second) == MAX_CHARACTERS


class Textless:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("given", [10**5000, Textless()], ids=["long", "none"])
def test_a_prediction_without_a_text_has_no_vote_and_its_score_counts(given: Any) -> None:
    assert read_one({"score": 1.0, "pred": given}, ("score",)) == Value(1.0, {}, "")
