"""Which number an answer gives, and which references are a number."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.reward.rules import RULES
from tests.reward.rules.calling import score
from trimaran.rewards import ReferenceUnusableError

LAST = [("last_integer", {}), ("numeric_match", {}), ("gsm8k", {"method": "flexible"})]
BEHIND_MARK = [("final_answer", {}), ("gsm8k", {"method": "strict"})]

SAYS_42 = [
    *("42", "42.", "42.0", "042", "+42", "$42$", r"\$42", r"42\%", "**42**", "_42_", "`42`"),
    *(r"\(42\)", r"\boxed{\text{42}}", "42cm", "42 cm^2", r"42\text{ cm}^2", r"42^\circ", "42nd"),
    *("42 km/h", "4\u200b2", "４２", "4.2e1", "42</answer>", "42<|im_end|>", "答案是42。"),
    *("共42元", "x = 42", r"x \approx 42", "the total (42)", "42, I think", "42 a day"),
    "**42 apples!**",
]
AFTER_OTHERS_42 = ["6*7=42.", "in a 30-day month: 42", "Step 3: 42", "Answers:\n- **42**"]
SAYS_MINUS_42 = [
    *("-42", "- 42", "-$42", "$-42$", "\u221242", "\u201342", "x = -42", "(-42)", r"\boxed{-42}"),
    *(r"-\boxed{42}", "-42.0", "-\u200b42"),
]
SAYS_NEITHER = [
    *("10^{42}", r"\sqrt 42", "sqrt(42)", "x_{42}", "42!", "42 million", "42k", r"\neq 42"),
    *("not 42", "isn't 42", "42 is wrong", "> 1 and < 42", r"x \leq 42", "1-42", "1 to 42"),
    *("(9)-42", "x-42", "1/42", r"\frac{1}{42}", "42/x", "3:42", r"6 \cdot 42", "6 × 42", "± 42"),
    *("41 or 42", "41,42", "41 42", "(41, 42)", r"\{1, 42\}", "42x", r"42\pi", r"42\sqrt{2}"),
    *("42 + x", "42²", "42_7", "42½", "2024-11-42", "1.2.42", "10,42", "f(42)", "log 42", "2e42"),
    *("Covid-42", "42 squared", "0x42", "4200", "[42,104]", "(x,42)", "[2,042]", "42⁄7", "50 % 42"),
    *("42(x + 1)", "42万", "--42", "3m^2 + 42m^2", "42 hundredths", "more than 42"),
    "42 and a half",
]


@pytest.mark.parametrize(("rule", "options"), LAST)
@pytest.mark.parametrize("text", [*SAYS_42, *AFTER_OTHERS_42])
def test_the_last_number_is_42(rule: str, options: dict[str, str], text: str) -> None:
    assert score(rule, f"so it is {text}", "42", **options) == 1
    assert score(rule, text, "42", **options) == 1


@pytest.mark.parametrize(("rule", "options"), LAST)
@pytest.mark.parametrize("text", SAYS_MINUS_42)
def test_the_last_number_is_minus_42(rule: str, options: dict[str, str], text: str) -> None:
    assert score(rule, text, "-42", **options) == 1
    assert score(rule, text, "42", **options) == 0


@pytest.mark.parametrize(("rule", "options"), [*LAST, *BEHIND_MARK])
@pytest.mark.parametrize("text", SAYS_NEITHER)
def test_a_numeral_inside_something_else_is_no_number(
    rule: str, options: dict[str, str], text: str
) -> None:
    for answer in (text, f"so it is {text}", f"$x$ is\n#### {text}"):
        assert score(rule, answer, "42", **options) == 0
        assert score(rule, answer, "-42", **options) == 0


@pytest.mark.parametrize("text", SAYS_42)
def test_the_number_behind_the_mark_is_42(text: str) -> None:
    assert score("final_answer", f"so\n#### {text}", "42") == 1
    verls = text[0] in "-.0123456789"
    assert score("gsm8k", f"so\n#### {text}", "42") == verls


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        (".5", "5", 0),
        ("-.5", "-0.5", 1),
        ("-.5", "0.5", 0),
        ("x=.5", ".5", 1),
        ("6.022e23", "23", 0),
        ("0,123", "123", 0),
        ("1,22", "122", 0),
        (r"1{,}000", "1000", 1),
        (r"10,\!080", "10080", 1),
    ],
)
def test_decimals_and_thousands(text: str, answer: str, value: float) -> None:
    for rule in ("numeric_match", "final_answer"):
        assert score(rule, f"#### {text}", answer) == value
    assert score("gsm8k", text, answer, method="flexible") == value


def test_a_number_that_verls_300_characters_cut_is_not_read() -> None:
    assert score("gsm8k", "1042" + " " * 296, "1042", method="flexible") == 1
    assert score("gsm8k", "1042" + " " * 298, "42", method="flexible") == 0


NUMBER_RULES = ["last_integer", "final_answer", "numeric_match", "gsm8k"]


@pytest.mark.parametrize("rule", NUMBER_RULES)
@pytest.mark.parametrize(
    "answer",
    [
        *(r"\frac{1}{2}", "10:30", "42!", "42 million", r"14 \pi", "0,1", "221_3", "9 - 4i"),
        *("7 or 8", r"\text{June 20}", r"x \ge 5", "[5, 7]", "12,34", r"1\frac12"),
        *(r"\cos 58^\circ", "7 8", r"The answer is \boxed{\frac{1}{2}}"),
        *(r"\boxed{\text{(E)}} of 5", r"\boxed{}", "", r"\boxed{1} and \boxed{2}", "between 5"),
    ],
)
def test_a_reference_that_is_no_plain_number_is_refused(rule: str, answer: str) -> None:
    with pytest.raises(ReferenceUnusableError):
        RULES[rule].check_reference(answer, {})
    with pytest.raises(ReferenceUnusableError):
        score(rule, "#### 5", answer)


@pytest.mark.parametrize("rule", NUMBER_RULES)
@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("$-42$", "-42"),
        (r"\$1,042", "1042"),
        (r"111, \! 111, \! 111", "111111111"),
        (r"8{,}880", "8880"),
        (r"120^\circ", "120"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"x = -15", "-15"),
        (r"\text{13}", "13"),
        ("#### 42 dollars", "42"),
        (r"so \boxed{42} of the 50 are left", "42"),
        (r"$\boxed{42}$ because $\boxed{42.0}$", "42"),
        (r"\boxed{\phantom{2}} then \boxed{4}", "4"),
    ],
)
def test_a_reference_is_read_as_it_is_meant(rule: str, answer: str, number: str) -> None:
    RULES[rule].check_reference(answer, {})
    assert score(rule, f"#### {number}", answer) == 1
    assert score(rule, f"#### {number}1", answer) == 0


INTEGERS = st.integers(-10_000, 10_000)
JOINTS = st.sampled_from([", ", ",", " or ", " and ", "; ", " ", "/", "-", " - ", "–", " to ", ":"])
BEFORE = st.sampled_from(["", "It is ", "x = ", "So the answer is: ", "3 + 4 = ", "\n", "**", "$"])
BEHIND = st.sampled_from(["", ".", " apples", "\n", "**", "$", " cm", ".\n", "</answer>"])


@given(st.lists(INTEGERS, min_size=2, max_size=4, unique=True), JOINTS, BEFORE, BEHIND)
def test_an_answer_that_gives_several_numbers_is_not_right(
    numbers: list[int], joint: str, before: str, behind: str
) -> None:
    joined = joint.join(map(str, numbers))
    assume(joint != "," or any(len(str(abs(n))) != 3 for n in numbers[1:]))
    for number in numbers:
        for rule, options in LAST:
            assert score(rule, f"{before}{joined}{behind}", str(number), **options) == 0
        for rule, options in BEHIND_MARK:
            assert score(rule, f"#### {joined}{behind}", str(number), **options) == 0


@given(INTEGERS, BEFORE, BEHIND, st.sampled_from(["{}", "{:,}", "{}.0", "{:.2f}", "{:e}", "${}$"]))
def test_any_form_of_the_number_is_right_and_of_another_wrong(
    number: int, before: str, behind: str, form: str
) -> None:
    text = f"{before}{form.format(number)}{behind}"
    assume("$$" not in text)
    for rule, options in LAST:
        assert score(rule, text, str(number), **options) == 1
        for other in (-number, number + 1, number * 10):
            assert score(rule, text, str(other), **options) == (other == number)
