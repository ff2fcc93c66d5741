"""Which letter an answer chooses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.reward.rules.calling import score
from trimaran.rewards import ReferenceUnusableError

CHOOSES_B = [
    *("B", "(B)", "B.", "**B**", "$B$", '"B"', "B: 42", "(B) 42", "`B`", "Ｂ", "\u200bB"),
    *("option B", "<answer>B</answer>", "<answer> B: 42 </answer>", 'Answer: "B"', "**Answer: B**"),
    *("Answer: [B]", "The answer is option B", "The answer is choice (B), as A is wrong."),
    *("The answer must be B", r"\boxed{B}", r"\boxed{\text{(B)}}", r"$\boxed{\textbf{(B) } 42}$"),
    *(r"\boxed{A}? No, \boxed{B}", "Answer: A. No: the answer is B"),
    "Answer A is wrong, so the answer must be B.",
    *("<think>The answer is A</think>The answer is B", "<think>A</think>\n\n**B**", "answer = B"),
    *("The answer is B because A is wrong", r"The answer is \(B\)", "The answer is B and not A"),
    *(r"The answer is B: \boxed{42}", "The answer is\nB", "ANSWER: B"),
    *(r"<answer>\boxed{B}</answer>", "The answer is 'B'.", "Answer - B"),
    *("The answer to the question is B", "My answer is B!", "The answer is:\n\n**B) Paris**"),
    *("The answer is B. The answer is not A.", "### Answer\n\n**B**"),
    "Answer: B\nA is wrong, C is.",
]
CHOOSES_NONE = [
    *("", "maybe", "A or B", "A, B, C, D", "ABCD", "A/B", "(A)(B)", "Answer: A B C D"),
    *("Answer: A, B", r"\boxed{AB}", r"\boxed{A \text{ or } B}", r"\boxed{A B}", "Answer:"),
    *(r"\boxed{A} or \boxed{B}", "<answer>A or B</answer>"),
    *("<answer>A</answer> <answer>B</answer>", "<answer></answer>", "b"),
    *("Answer A is wrong, so it must be D.", "not A", "The answer is not A", "The answer isn't B"),
    *("The answer is neither A nor B", "The answer is A is wrong", "Answer: Bob"),
    *("The answer is A dog", "A is wrong and B is right", "A: 41\nB: 42\nC: 43", "I think so"),
    *("The answer is between A and B", "Answer: A|B", "Answer: A-D"),
    *("The answer is A. The answer is B.", r"The answer is not \boxed{B}"),
    *(r"Answer: \boxed{A \cdot B}", "Answer: \\boxed{A}\nFinal answer: \\boxed{B}"),
    *(r"\boxed{A = 5}", "The answer is A? No, B.", "The answer for A is B", "Is the answer B?"),
    *("Answer: A & B", "<think>The answer is B</think> I give up"),
    *("<think>B</think><answer>42</answer>", "Answer B", "Answer: A\nAnswer: B\nAnswer: C"),
    *("Answer: A\n(B)", "B. No, A", "Answer: **A** or **B**", r"Answer: \boxed{A} \boxed{B}"),
    *(r"\boxed{\text{A}\text{B}}", "Answer: A\u200bB"),
]


@pytest.mark.parametrize("text", CHOOSES_B)
def test_b_is_chosen(text: str) -> None:
    assert score("multiple_choice", text, "B") == 1
    assert all(score("multiple_choice", text, letter) == 0 for letter in "ACDE")


@pytest.mark.parametrize("text", CHOOSES_NONE)
def test_nothing_is_chosen(text: str) -> None:
    assert all(score("multiple_choice", text, letter) == 0 for letter in "ABCDE")


@pytest.mark.parametrize("answer", ["A, C", "A or B", "both", "F", "not A", r"\boxed{A, B}"])
def test_a_reference_that_is_not_one_letter_is_refused(answer: str) -> None:
    with pytest.raises(ReferenceUnusableError, match="none of ABCDE"):
        score("multiple_choice", "B", answer)


@pytest.mark.parametrize("answer", ["B", "(B)", "B: 42", r"so \boxed{\text{(B)}}", "#### B"])
def test_a_reference_may_be_written_as_an_answer_is(answer: str) -> None:
    assert score("multiple_choice", "The answer is B", answer) == 1


FORMS = st.sampled_from(
    [
        *("{}", "({})", "Answer: {}", "The answer is {}", "The answer is option {}.", "**{}**"),
        *("\\boxed{{{}}}", "\\boxed{{\\text{{{}}}}}", "<answer>{}</answer>", "so **Answer:** {}\n"),
    ]
)
JOINTS = st.sampled_from(
    [", ", " or ", " and ", "/", " ", " & ", "; ", ",", "|", "), (", "-", "\n"]
)
WRAPS = st.sampled_from(["{}", "({})", "**{}**", "${}$", "\\text{{{}}}", '"{}"'])


@given(FORMS, st.sampled_from("ABCDE"), WRAPS)
def test_one_letter_is_right_for_itself_alone(form: str, letter: str, wrap: str) -> None:
    text = form.format(wrap.format(letter))
    assert [x for x in "ABCDE" if score("multiple_choice", text, x)] == [letter]


@given(FORMS, st.lists(st.sampled_from("ABCDE"), min_size=2, unique=True), JOINTS, WRAPS)
def test_several_letters_are_right_for_none(
    form: str, letters: list[str], joint: str, wrap: str
) -> None:
    text = form.format(joint.join(map(wrap.format, letters)))
    assert not any(score("multiple_choice", text, letter) for letter in "ABCDE")
