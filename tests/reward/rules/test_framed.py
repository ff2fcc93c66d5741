r"""\fbox{…} counts wherever \boxed{…} does: MATH's own solutions have both."""

import pytest

from tests.reward.rules.calling import score

ANSWERS = {
    "multiple_choice": (r"So \boxed{B}", "B"),
    "acc_for_dapo": (r"Answer: \boxed{42}", "42"),
    "dapo": (r"Answer: \boxed{42}", "42"),
    "strict_format": (r"<think>6 x 7</think><answer>\boxed{42}</answer>", ""),
}
OPTIONS = {"dapo": {"max_tokens": 100}}
READERS = ["boxed_match", "boxed_equal", "math", "geo3k", "acc", "base_acc", "retool_reward"]
PLAIN = r"<think>6 x 7</think><answer>\boxed{42}</answer>"


@pytest.mark.parametrize("rule", [*READERS, "math_verify", *ANSWERS])
def test_a_framed_answer_counts_as_a_boxed_one(rule: str) -> None:
    text, answer = ANSWERS.get(rule, (PLAIN, "42"))
    options = OPTIONS.get(rule, {})
    boxed = score(rule, text, answer, **options)
    assert score(rule, text.replace("boxed", "fbox"), answer, **options) == boxed > 0


def test_a_reference_may_stand_in_a_frame() -> None:
    assert score("boxed_match", r"It is \boxed{42}", r"6 x 7 is \fbox{42}") == 1.0
