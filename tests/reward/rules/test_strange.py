"""Whatever a completion or a reference holds: a value within bounds, or a reference refused."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.reward.rules import RULES
from tests.reward.rules.calling import score
from trimaran.rewards import ReferenceUnusableError

pytestmark = pytest.mark.e2e

OPTIONS = {"overlong": {"max_tokens": 8}, "dapo": {"max_tokens": 8}}
ELSEWHERE = {"code"}
"""Has tests of its own."""
SYMBOLIC = {"math_verify", "boxed_equal", "math", "geo3k", "r1v", "acc", "base_acc"}
SYMBOLIC |= {"math_verify_reward"}
OURS = sorted(set(RULES) - SYMBOLIC - ELSEWHERE)

FRAGMENTS = st.sampled_from(
    [
        *("\\boxed{", "{", "}", "#### ", "<think>", "</think>", "<answer>", "</answer>", "\n", " "),
        *("Answer:", "answer is", "$", "\\frac", "\\text{", "1,234", "-7", ".5", "1e9", "B", "("),
        *("\0", "\u202eא", "\ud800", "\x1b[0m", "٧", "½", "Step 1:", "First,", "=", "\\\\", "|"),
    ]
)
ANYTHING = st.text(st.characters(exclude_categories=())) | st.lists(FRAGMENTS).map("".join)
# The libraries may take any time: what they are given here is short, and has no powers.
SHORT = st.lists(
    st.sampled_from([*"0179+-/.,=(){}x ", "\\boxed{", "\\frac", "\\sqrt", "\0", "\ud800", "א"]),
    max_size=12,
).map("".join)


def judge_twice(rule: str, text: str, answer: str) -> None:
    options = OPTIONS.get(rule, {})
    judge = functools.partial(score, rule, text, answer, **options)
    try:
        value = judge()
    except ReferenceUnusableError:
        with pytest.raises(ReferenceUnusableError):
            judge()
        return
    minimum, maximum = RULES[rule].bounds(options)
    assert minimum <= value <= maximum
    assert judge() == value


@pytest.mark.parametrize("rule", OURS)
@settings(max_examples=60, deadline=None)
@given(text=ANYTHING, answer=ANYTHING)
def test_any_text_and_any_reference(rule: str, text: str, answer: str) -> None:
    judge_twice(rule, text, answer)
    judge_twice(rule, text, "7")


@pytest.mark.parametrize("rule", sorted(SYMBOLIC))
@settings(max_examples=15, deadline=None)
@given(text=SHORT, answer=SHORT)
def test_any_short_text_given_to_a_library(rule: str, text: str, answer: str) -> None:
    for given_ in (
        text,
        f"\\boxed{{{text}}}",
        f"<think></think><answer>\\boxed{{{text}}}</answer>",
    ):
        judge_twice(rule, given_, answer)


SIZE = 500_000
LONG: dict[str, Callable[[], str]] = {
    "digits": lambda: "9" * SIZE,
    "spaces": lambda: "answer" + " " * SIZE + "is" + " " * SIZE,
    "NUL": lambda: "\0" * SIZE,
    "numbers": lambda: "1,234," * (SIZE // 6),
    "open boxes": lambda: "\\boxed{" * (SIZE // 7),
    "nested braces": lambda: "\\boxed{" + "{" * (SIZE // 2) + "}" * (SIZE // 2) + "}",
    "thoughts": lambda: "<think>" * (SIZE // 7),
    "ends of thoughts": lambda: "<think>" + "</think>" * (SIZE // 8),
    "beginnings": lambda: "<think>" + "</think><answer>" * (SIZE // 16),
    "slashes": lambda: " / " * (SIZE // 3),
    "choices": lambda: "The answer is A, " * (SIZE // 17),
    "signs": lambda: "- $(" * (SIZE // 4) + "7",
    "listed numbers": lambda: "7 or " * (SIZE // 5) + "7" + ") " * 1000,
    "marks": lambda: "#### 1 " * (SIZE // 7),
    "boxes": lambda: "<think></think><answer>" + "\\boxed{1}" * (SIZE // 9) + "</answer>",
}


@pytest.mark.parametrize("rule", sorted(set(RULES) - ELSEWHERE))
@pytest.mark.timeout(60)
@pytest.mark.usefixtures("asked")
def test_long_texts_take_linear_time(rule: str) -> None:
    """Half a million characters: one quadratic pattern of ours, and this takes minutes for each text."""
    answer = "B" if rule == "multiple_choice" else "7"
    for make in LONG.values():
        value = score(rule, make(), answer, **OPTIONS.get(rule, {}))
        minimum, maximum = RULES[rule].bounds({})
        assert minimum <= value <= maximum
