"""Rules that ask math-verify or mathruler."""

from __future__ import annotations

import pytest

from services.reward.rules.mathematics import MAX_ANSWER, MAX_DEPTH
from tests.reward.rules.calling import score
from trimaran.rewards import ReferenceUnusableError

GOOD = r"<think>a</think><answer>\boxed{%s}</answer>"


@pytest.mark.parametrize(
    ("rule", "text", "answer", "value"),
    [
        ("math_verify", "10 / 2 = 5\nso the answer is 4\n#### 5", "#### 5", 1),
        ("math_verify", r"#### Result" + "\n" r"\boxed{5} of 7 things", "5", 1),
        ("mathruler", r"\boxed{7} \boxed{8}", "7", 0),
        ("mathruler", "none", "None", 0),  # what mathruler calls a text without a box
        ("acc", r"\boxed{}", "1/2", -1),
        ("acc", r"\boxed 5$", "5", 1),
        ("acc", r"\boxed{5}<|im_end|>\boxed{6}", "5", 1),
        ("acc", r"\boxed{6}<|im_start|>assistant \boxed{5}</s>", "5", 1),
        ("acc", r"\boxed{5}<|im_start|>assistant 5", "5", -1),
        # Only the answer counts, not what the reasoning says.
        ("math_verify_reward", r"<think>The answer is 7.</think><answer>\boxed{}</answer>", "7", 0),
        ("math_verify_reward", r"<think>\boxed{7}</think><answer>\boxed{?}</answer>", "7", 0),
        ("math_verify_reward", r"<think>\boxed{8}</think><answer>\boxed{7}</answer>", "7", 1),
        (
            "math_verify_reward",
            r"<think></think><answer>The answer is 7. \boxed{}</answer><answer>\boxed{}</answer>",
            "7",
            0,
        ),
        ("math", "< think > a < / think > \\boxed{7}", "7", 1),
        ("r1v", "<think>a</think><answer>\n7\n</answer>", "7", 1),
        ("r1v", " 7 ", "7", 0.5),
        ("acc_for_dapo", "answer : 6\nANSWER: $7$ dollars", "7", 1),
        ("acc_for_dapo", r"Answer: \boxed{1,007}", "1007", 1),
        ("acc_for_dapo", "Answer: 7" + " " * 300, "7", -1),
        ("retool_reward", r"\boxed{7}" + " " * 100, "7", -1),
        ("retool_reward", "<tool_call>a" * 3, "7", -0.7),
        ("retool_reward", "<tool_call>a" * 30, "7", 0),
    ],
)
def test_value(rule: str, text: str, answer: str, value: float) -> None:
    assert score(rule, text, answer) == pytest.approx(value)


@pytest.mark.parametrize(
    "rule", ["math_verify", "mathruler", "r1v", "acc_for_dapo", "retool_reward"]
)
@pytest.mark.parametrize("answer", ["", " $$ ", "\\boxed{}", "see above\n#### "])
def test_an_empty_reference_is_not_judged(rule: str, answer: str) -> None:
    with pytest.raises(ReferenceUnusableError, match="empty"):
        score(rule, GOOD % "7", answer)


LONG = "word " * 1000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (LONG + r"so it is \boxed{7}", 1),
        (rf"so it is \boxed{{7}} {LONG}", 1),
        (f"The answer is $7$.\n{LONG}", 0),
        (rf"\[ x = {LONG} \]" + "\nThe answer is $7$.", 1),
        (rf"\boxed{{{LONG}7}}", 0),
    ],
)
def test_math_verify_reads_the_end_of_a_long_text(text: str, value: float) -> None:
    assert score("math_verify", text, "7") == value


BOXED_RULES = ("math_verify", "acc", "mathruler")


def box(text: str) -> str:
    return f"\\boxed{{{text}}}"


@pytest.mark.parametrize("rule", BOXED_RULES)
def test_a_library_is_given_nothing_that_is_too_long(rule: str, asked: list[str]) -> None:
    for text in (box("1+" * MAX_ANSWER), "1+" * MAX_ANSWER):
        assert score(rule, text, "7") <= 0
    assert all(len(text) <= MAX_ANSWER for text in asked)


@pytest.mark.parametrize("rule", BOXED_RULES)
@pytest.mark.parametrize("brackets", ["()", "[]", "{}"])
def test_a_library_is_given_nothing_that_is_too_deep(
    rule: str, brackets: str, asked: list[str]
) -> None:
    def nested(depth: int) -> str:
        return brackets[0] * depth + "7" + brackets[1] * depth

    assert score(rule, box(nested(MAX_DEPTH + 1)), "7") <= 0
    assert asked == []
    score(rule, box(nested(MAX_DEPTH - 1)), "7")  # math_verify gives the box as well
    assert asked


def test_dapo_refuses_a_reference_that_it_could_not_find() -> None:
    with pytest.raises(ReferenceUnusableError, match="300"):
        score("acc_for_dapo", "Answer: 7", "7" * 301)
