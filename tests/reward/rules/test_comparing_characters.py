"""Rules that compare characters: what the normal form may hide, and what not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reward.rules.calling import score


@pytest.mark.parametrize(
    ("given_", "answer"),
    [
        *(("4, 2", "42"), ("1,22", "122"), (r"4\ 2", "42"), (r"4,\!2", "42")),
        *(("4 degrees 2", "42"), ("1 1/2", "11/2"), ("x != 42", "42"), (r"x \not= 42", "42")),
        *(("41 >= 42", "42"), ("$41$ or $42$", "41"), ("not $42$", "42"), ("$42$, not $41$", "42")),
        *(("$41$ $42$", "41"), (r"\boxed{41} or \boxed{42}", "42")),
    ],
)
def test_the_normal_form_does_not_make_another_answer_right(given_: str, answer: str) -> None:
    assert score("acc_for_dapo", f"Answer: {given_}", answer) == -1


@pytest.mark.parametrize(
    ("given_", "answer"),
    [
        *(("$42$ dollars", "42"), ("x = 42", "42"), (r"10,\!080", "10080"), ("10{,}080", "10080")),
        *(("-1,042", "-1042"), ("1,22", "1,22"), ("It is $42$.", "42")),
        *((r"\frac12", r"\frac{1}{2}"), (r"\$42", "42"), ("\u221242", "-42"), ("4\u200b2", "42")),
        *((r"15\mbox{ cm}^2", "15"), ("1, 22", "1,22"), ("1 1/2", "1 1/2")),
        *((r"\text{Evelyn}", "Evelyn"), (r"42^\circ", "42"), ("so x = $42$ for all y", "42")),
    ],
)
def test_forms_of_the_same_answer_are_right(given_: str, answer: str) -> None:
    assert score("acc_for_dapo", f"Answer: {given_}", answer) == 1


VALUES = st.integers(-99_999, 99_999)
JOINTS = st.sampled_from([" ", ", ", " or ", " and ", "; ", "/", "$ or $", "$, $", "--"])


@given(st.lists(VALUES, min_size=2, max_size=4, unique=True), JOINTS)
def test_several_values_are_right_for_none(values: list[int], joint: str) -> None:
    joined = joint.join(map(str, values))
    for answer in [*map(str, values), "".join(str(abs(value)) for value in values)]:
        for form in ("{}", "${}$", "It is ${}$."):
            assert score("acc_for_dapo", f"Answer: {form.format(joined)}", answer) == -1
        assert score("boxed_match", f"\\boxed{{{joined}}}", answer) == 0
        assert score("retool_reward", f"\\boxed{{{joined}}}", answer) == -1


@given(VALUES, st.sampled_from(["{}", "${}$", "{:,}", "x = {}", "${:,}$ apples", "\\boxed{{{}}}"]))
def test_forms_of_a_value_are_right_for_it_alone(value: int, form: str) -> None:
    text = f"Answer: {form.format(value)}"
    assert score("acc_for_dapo", text, str(value)) == 1
    assert score("acc_for_dapo", text, str(value + 1)) == -1
    assert score("acc_for_dapo", text, str(value) + "0") == -1
