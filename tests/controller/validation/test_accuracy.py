"""What answers add up to, by hand and against brute force."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.controller.validation.accuracy import (
    Judged,
    Tally,
    accuracy_terms,
    judge,
    majority_at,
    pass_at,
)
from trimaran.telemetry.metrics import sizes_up_to
from trimaran.types import Faulted, Score


def answers(text: str) -> list[Judged]:
    """7 is right; "-" has no final answer, "?" is of a rule that reads none."""
    predictions = {"-": "", "?": None}
    return [Judged(float(one == "7"), one == "7", predictions.get(one, one)) for one in text]


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_correct_one(
    correct: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(correct)))
    found = sum(any(some) for some in combinations(correct, k)) / comb(len(correct), k)
    assert pass_at(k, len(correct), sum(correct)) == pytest.approx(found)


@pytest.mark.parametrize(
    ("text", "k", "value"),
    [
        ("7788", 4, 0.5),  # as many votes for the wrong one
        ("7789", 4, 1.0),
        ("8879", 4, 0.0),
        ("778887", 3, 0.5),  # 778 is right, 887 is wrong
        ("77888", 3, 1.0),  # the last two make no part
        ("7---", 4, 1.0),  # no votes for nothing
        ("----", 4, 0.0),
        ("78", 1, 0.5),
        ("7", 1, 1.0),
    ],
)
def test_majority_at_k_by_hand(text: str, k: int, value: float) -> None:
    assert majority_at(k, answers(text)) == value


def test_an_answer_is_as_correct_as_the_samples_that_give_it() -> None:
    """The rule may ask for a form besides."""
    formless = Judged(0.0, False, "7")
    assert majority_at(4, [*answers("77"), formless, formless]) == 0.5


def test_sizes_are_powers_of_two_and_the_number_itself() -> None:
    assert [sizes_up_to(n) for n in (0, 1, 2, 6, 16)] == [
        *([], [1], [1, 2], [1, 2, 4, 6]),
        [1, 2, 4, 8, 16],
    ]


def test_what_counts_as_correct() -> None:
    verdicts = (Score(0.1, {"geo3k": 0.1, "geo3k.accuracy": 0.0}), Score(0.9, {"geo3k": 0.9}))
    assert [one.is_correct for one in judge(verdicts, ("geo3k",), 0.5)] == [False, True]
    assert [one.is_correct for one in judge(verdicts, ("geo3k.accuracy", "geo3k"), 0.5)] == [
        *(False, True)
    ]
    assert [one.is_correct for one in judge(verdicts, ("style",), 0.5)] == [None, None]
    well_formed = Score(0.5, {"r1v": 0.5, "r1v.accuracy": 0.0, "r1v.format": 1.0})
    assert [one.is_correct for one in judge([well_formed], accuracy_terms(["r1v"]), 0.5)] == [False]
    both = Score(1.0, {"style": 1.0, "mine": 0.2, "mine.acc": 1.0})
    assert [one.is_correct for one in judge([both], accuracy_terms(["mine", "style"]), 0.9)] == [
        True
    ]
    assert [one.is_correct for one in judge(verdicts, ("geo3k",), 0.05)] == [True, True]
    assert judge([Faulted("worker gone", {"geo3k": 1.0})], ("geo3k",), 0.5) == []


def test_prompts_count_alike_and_those_with_too_few_samples_not_at_all() -> None:
    tally = Tally(num_samples=4)
    tally.add(answers("7"), answers("7888"))
    tally.add(answers("8"), answers("77"))  # two could not be scored
    assert tally.values() == {
        "validation/greedy_reward/mean": 0.5,
        "validation/greedy_correct/share": 0.5,
        "validation/sampled_reward/mean": 0.5,
        "validation/pass_at/1": (0.25 + 1) / 2,
        "validation/pass_at/2": (0.5 + 1) / 2,
        "validation/pass_at/4": 1.0,
        "validation/majority_at/2": (0.25 + 1) / 2,
        "validation/majority_at/4": 0.0,
    }


def test_where_no_rule_reads_an_answer_there_is_no_majority() -> None:
    tally = Tally(num_samples=2)
    tally.add([], answers("??"))
    assert tally.values().keys() == {
        "validation/sampled_reward/mean",
        "validation/pass_at/1",
        "validation/pass_at/2",
    }
    assert Tally(4).values() == {}
