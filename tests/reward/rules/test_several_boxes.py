r"""References with several \boxed{…}, as 90 of MATH's 5,000 solutions have them, and with \fbox{…}."""

from __future__ import annotations

from typing import Any

import pytest

from services.reward.rules import RULES
from tests.reward.rules.calling import score
from trimaran.rewards import ReferenceUnusableError

TWO = r"Then $x = \boxed{-2}$; as we saw above, also $x = \boxed{1}$."
ANGLES = r"\boxed{30^\circ}, \boxed{45^\circ} and last $\boxed{105^\circ}$"
SAME = r"so it is $\boxed{\frac{25}{13}} = \boxed{1\frac{12}{13}}$"
LIBRARIES = ["math-verify", "mathruler"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        (r"\boxed{-2} and \boxed{1}", TWO, True),
        (r"\boxed{1}. Then again $\boxed{-2}$", TWO, True),
        (r"\boxed{1, -2}", TWO, True),
        (r"<think>\boxed{5}?</think>\boxed{1} and \boxed{-2}", TWO, True),
        (r"<think>\boxed{1}</think>\boxed{-2}", TWO, False),
        (r"\boxed{1}", TWO, False),
        (r"\boxed{-2, 1, 3}", TWO, False),
        (r"\boxed{-2} \boxed{1} \boxed{3}", TWO, False),
        (r"\boxed{-2} \boxed{-2}", TWO, False),
        (r"\boxed{105^\circ, 30^\circ}", ANGLES, False),
        (r"\boxed{\frac{25}{13}}", SAME, True),
        (r"\boxed{13} \boxed{\frac{25}{13}}", SAME, True),
        (r"\boxed{(0,0), (10,0)}", r"\boxed{(10, 0)} or \boxed{(0,0)}", True),
        (r"\boxed{4}", r"\boxed{\phantom{2}} is \boxed{4}", True),
        (r"\boxed{3} and \boxed{2, 1}", r"\boxed{1,2} or \boxed{3}", True),
    ],
)
def test_all_boxes_count_in_any_order(library: str, text: str, answer: str, right: bool) -> None:
    for rule in ("math_17k_acc", "acc", "math"):
        options: dict[str, Any] = {"format_weight": 0} if rule == "math" else {}
        value = score(rule, text, answer, library=library, **options)
        assert (value == 1) == right, rule


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (r"$\boxed{1}$. Then again $\boxed{-2}$", True),
        ("The answer is $-2, 1$", True),
        ("The answer is $1$ or $-2$", True),
        (r"\boxed{1}", False),
    ],
)
def test_the_whole_text_is_read_for_all_of_them(text: str, right: bool) -> None:
    assert score("math_verify", text, TWO) == right


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_answer_element_may_hold_them(library: str) -> None:
    text = "<think>a</think><answer>%s</answer>"
    assert score("r1v", text % "1, -2", TWO, library=library) == 1
    assert score("r1v", text % "1", TWO, library=library) == 0.5
    assert score("base_acc", text % r"\boxed{1}, \boxed{-2}", TWO, library=library) == 1


@pytest.mark.parametrize("rule", ["boxed_match", "acc_for_dapo", "retool_reward"])
def test_rules_on_characters_refuse_different_boxes(rule: str) -> None:
    with pytest.raises(ReferenceUnusableError, match="2 different boxes"):
        RULES[rule].check_reference(TWO, {})
    RULES[rule].check_reference(r"\boxed{7}, as before \boxed{ 7 }", {})


ANSWERED = r"<think>6 x 7</think><answer>\boxed{42}</answer>"
OTHERS = {
    "multiple_choice": (r"So \boxed{B}", "B"),
    "acc_for_dapo": (r"Answer: \boxed{42}", "42"),
    "strict_format": (ANSWERED, ""),
}
READERS = ["boxed_match", "boxed_equal", "math", "acc", "retool_reward", "math_verify"]


@pytest.mark.parametrize("rule", [*READERS, *OTHERS])
def test_a_framed_answer_counts_as_a_boxed_one(rule: str) -> None:
    """MATH's own solutions have both."""
    text, answer = OTHERS.get(rule, (ANSWERED, "42"))
    boxed = score(rule, text, answer)
    assert score(rule, text.replace("boxed", "fbox"), answer) == boxed > 0


def test_a_reference_may_stand_in_a_frame() -> None:
    assert score("boxed_match", r"It is \boxed{42}", r"6 x 7 is \fbox{42}") == 1.0
