"""From outcomes to a verdict: weights, bounds, faults and what hanging the checker must not gain."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.outcome import Fault, Indigestible, NotApplicable, Outcome, Value
from services.reward.scoring import (
    MAX_PART_NAMES,
    Judge,
    PartNames,
    combine,
    score_group,
    within_bounds,
)
from services.reward.terms import FunctionSpec, Term
from trimaran.rewards import Sample
from trimaran.types import Faulted, Score

RIGHT = Term("right", 2.0, 0.0, 1.0, FunctionSpec("a:b"))
LONG = Term("long", -0.5, 0.0, 3.0, FunctionSpec("a:b"))
OUTCOMES = st.one_of(
    st.builds(Value, st.floats(0, 1)),
    st.just(NotApplicable()),
    st.just(Indigestible("hung")),
    st.just(Fault("broken")),
)


def test_the_reward_is_the_weighted_sum_and_parts_are_metrics() -> None:
    outcomes = [Value(1.0, {"format": 0.25}), Value(2.0)]
    assert combine([RIGHT, LONG], outcomes) == Score(
        1.0, {"right": 1.0, "right.format": 0.25, "long": 2.0}
    )


def test_an_indigestible_answer_gets_the_worst_of_its_term_alone() -> None:
    assert combine([RIGHT, LONG], [Indigestible("hung"), Value(1.0)]) == Score(
        -0.5, {"right": 0.0, "long": 1.0}, indigestible=True
    )
    # A penalty counts as given in full: hanging its checker must not escape it.
    assert combine([RIGHT, LONG], [Value(1.0), Indigestible("hung")]) == Score(
        0.5, {"right": 1.0, "long": 3.0}, indigestible=True
    )


def test_without_rules_the_environments_reward_is_all() -> None:
    samples = [Sample("a", "b"), Sample("c", "b")]
    verdicts = asyncio.run(score_group([], {}, PartNames(), samples))
    assert verdicts == (Score(0.0), Score(0.0))


def test_a_fault_leaves_the_completion_faulted_and_names_its_terms() -> None:
    assert combine([RIGHT, LONG], [Value(1.0), Fault("died")]) == Faulted(
        "long: died", {"right": 1.0}, ("long",)
    )
    verdict = combine([RIGHT, LONG], [Fault("late"), Fault("died")])
    assert verdict == Faulted("right: late; long: died", {}, ("right", "long"))


@pytest.mark.parametrize("outcome", [Value(1e308), Value(-1e31), Indigestible("hung", -1e308)])
def test_a_reward_that_no_deviation_can_be_taken_of_is_faulted(outcome: Outcome) -> None:
    term = Term("free", 2.0, -math.inf, math.inf, FunctionSpec("a:b"))
    verdict = combine([RIGHT, term], [Value(1.0), outcome])
    assert isinstance(verdict, Faulted)
    assert "too much to learn from; set minimum and maximum" in verdict.fault


def test_a_term_that_does_not_apply_is_left_out() -> None:
    assert combine([RIGHT, LONG], [NotApplicable(), Value(1.0)]) == Score(-0.5, {"long": 1.0})
    verdict = combine([RIGHT], [NotApplicable()])
    assert isinstance(verdict, Faulted)
    assert "no rule applies" in verdict.fault


@given(st.lists(OUTCOMES, min_size=2, max_size=2))
def test_only_faults_and_nothing_at_all_leave_faulted(outcomes: list[Outcome]) -> None:
    verdict = combine([RIGHT, LONG], outcomes)
    faulty = any(isinstance(outcome, Fault) for outcome in outcomes)
    nothing = all(isinstance(outcome, NotApplicable) for outcome in outcomes)
    assert isinstance(verdict, Faulted) == (faulty or nothing)
    if isinstance(verdict, Score):
        assert -1.5 <= verdict.reward <= 2.0
        assert verdict.indigestible == any(isinstance(one, Indigestible) for one in outcomes)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 1.1])
def test_a_value_that_cannot_be_believed_is_a_fault(value: float) -> None:
    outcome = within_bounds(RIGHT, Value(value), PartNames())
    assert isinstance(outcome, Fault)
    if math.isfinite(value):
        assert "reward.rules.right.minimum" in outcome.reason


def test_a_group_gets_its_verdicts_in_order_and_one_line_a_failing_term(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def right(samples: Sequence[Sample]) -> list[Outcome]:
        return [Value(float(sample.text == sample.answer)) for sample in samples]

    async def long(samples: Sequence[Sample]) -> list[Outcome]:
        return [Fault("died") if sample.text == "b" else Value(0.0) for sample in samples]

    samples = [Sample(text, "right", prompt_id="t:1") for text in ("a", "b", "right", "b")]
    with caplog.at_level(logging.WARNING):
        verdicts = asyncio.run(
            score_group([RIGHT, LONG], {"right": right, "long": long}, PartNames(), samples)
        )
    assert [verdict.terms for verdict in verdicts] == [
        {"right": 0.0, "long": 0.0},
        {"right": 0.0},
        {"right": 1.0, "long": 0.0},
        {"right": 0.0},
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "t:1: long: 2 of 4 are faulted; the first: died"
    ]


def test_names_of_parts_come_to_an_end() -> None:
    names = PartNames()
    kept = [within_bounds(RIGHT, Value(1.0, {"a": 1.0, f"id-{k}": 1.0}), names) for k in range(99)]
    values = [outcome for outcome in kept if isinstance(outcome, Value)]
    assert len({name for value in values for name in value.parts}) == MAX_PART_NAMES
    assert values[-1] == Value(1.0, {"a": 1.0})


def test_what_a_plugin_gives_an_indigestible_answer_stands_where_the_term_has_no_minimum() -> None:
    plugin = Term("judge", 1.0, -math.inf, 2.0, FunctionSpec("a:b"))
    for score, reward in ((-3.0, -3.0), (1e9, 2.0)):
        verdict = combine([plugin], [Indigestible("hung", score)])
        assert verdict == Score(reward, {"judge": reward}, indigestible=True)


def test_a_term_for_other_tasks_is_not_asked() -> None:
    asked: list[str] = []

    def judge(name: str) -> Judge:
        async def give(samples: Sequence[Sample]) -> list[Outcome]:
            asked.append(name)
            return [Value(1.0)] * len(samples)

        return give

    terms = [RIGHT, replace(LONG, tasks=("prose", "poems"))]
    judges = {term.name: judge(term.name) for term in terms}
    for task, expected in (("sums", {"right": 1.0}), ("poems", {"right": 1.0, "long": 1.0})):
        samples = [Sample("a", "b", task=task)] * 2
        verdicts = asyncio.run(score_group(terms, judges, PartNames(), samples))
        assert [verdict.terms for verdict in verdicts] == [expected] * 2
    assert asked == ["right", "right", "long"]
