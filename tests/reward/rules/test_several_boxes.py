r"""References with several \boxed{…}, as 90 of MATH's 5,000 solutions have them."""

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
        (r"\boxed{1 \text{ or } -2}", TWO, True),
        (r"\boxed{1}", TWO, False),
        (r"\boxed{-2}", TWO, False),
        (r"\boxed{-2, 1, 3}", TWO, False),
        (r"\boxed{-2} \boxed{1} \boxed{3}", TWO, False),
        (r"\boxed{-2} \boxed{-2}", TWO, False),
        (r"-2, 1", TWO, False),
        (r"\boxed{105^\circ, 30^\circ, 45^\circ}", ANGLES, True),
        (r"\boxed{105^\circ, 30^\circ}", ANGLES, False),
        (r"\boxed{\frac{25}{13}}", SAME, True),
        (r"\boxed{1\frac{12}{13}}", SAME, True),
        (r"\boxed{13} \boxed{\frac{25}{13}}", SAME, True),
        (r"\boxed{(10,0)}, \boxed{(0,0)}", r"\boxed{(0,0)} or \boxed{(10, 0)}", True),
        (r"\boxed{(0,0), (10,0)}", r"\boxed{(10, 0)} or \boxed{(0,0)}", True),
        (r"\boxed{(10,0)}", r"\boxed{(0,0)} or \boxed{(10, 0)}", False),
        (r"\boxed{4}", r"\boxed{\phantom{2}} is \boxed{4}", True),
        (r"\boxed{3} and \boxed{2, 1}", r"\boxed{1,2} or \boxed{3}", True),
        (r"\boxed{3} and \boxed{2}", r"\boxed{1,2} or \boxed{3}", False),
        (r"\boxed{7}", r"\boxed{7}, as before \boxed{7}", True),
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
        (r"$\boxed{1}$ and $\boxed{-2}$", True),
        (r"$\boxed{1}$. Then again $\boxed{-2}$", True),
        ("The answer is $-2, 1$", True),
        ("The answer is $1$ or $-2$", True),
        ("The answer is $1$", False),
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
