"""From outcomes to a verdict: weights, bounds, faults and what hanging the checker must not gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

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
HUNG = Indigestible("hung")
LONG = Term("long", -0.5, 0.0, 3.0, FunctionSpec("a:b"))


@pytest.mark.parametrize(
    ("right", "long", "verdict"),
    [
        (
            Value(1.0, {"format": 0.25}),
            Value(2.0),
            Score(1.0, {"right": 1.0, "right.format": 0.25, "long": 2.0}),
        ),
        # The worst of its term alone.
        (HUNG, Value(1.0), Score(-0.5, {"right": 0.0, "long": 1.0}, indigestible=True)),
        # A penalty counts as given in full: hanging its checker must not escape it.
        (Value(1.0), HUNG, Score(0.5, {"right": 1.0, "long": 3.0}, indigestible=True)),
        (NotApplicable(), Value(1.0), Score(-0.5, {"long": 1.0})),
        (Value(1.0), Fault("died"), Faulted("long: died", {"right": 1.0}, ("long",))),
        (Fault("late"), Fault("died"), Faulted("right: late; long: died", {}, ("right", "long"))),
    ],
)
def test_the_reward_is_the_weighted_sum_or_a_fault(
    right: Outcome, long: Outcome, verdict: Score | Faulted
) -> None:
    assert combine([RIGHT, LONG], [right, long]) == verdict


def test_without_any_that_applies_there_is_no_reward() -> None:
    verdict = combine([RIGHT], [NotApplicable()])
    assert isinstance(verdict, Faulted) and "no rule applies" in verdict.fault


async def test_without_rules_the_environments_reward_is_all() -> None:
    assert await score_group([], {}, PartNames(), [Sample("a", "b")] * 2) == (Score(0.0),) * 2


@pytest.mark.parametrize("outcome", [Value(1e308), Value(-1e31), Indigestible("hung", -1e308)])
def test_a_reward_that_no_deviation_can_be_taken_of_is_faulted(outcome: Outcome) -> None:
    term = Term("free", 2.0, -math.inf, math.inf, FunctionSpec("a:b"))
    verdict = combine([RIGHT, term], [Value(1.0), outcome])
    assert isinstance(verdict, Faulted)
    assert "too much to learn from; set minimum and maximum" in verdict.fault


@pytest.mark.parametrize("value", [math.nan, -math.inf, -0.1, 1.1])
def test_a_value_that_cannot_be_believed_is_a_fault(value: float) -> None:
    outcome = within_bounds(RIGHT, Value(value), PartNames())
    assert isinstance(outcome, Fault)
    if math.isfinite(value):
        assert "reward.rules.right.minimum" in outcome.reason


async def test_a_group_gets_its_verdicts_in_order_and_one_line_a_failing_term(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def right(samples: Sequence[Sample]) -> list[Outcome]:
        return [Value(float(sample.text == sample.answer)) for sample in samples]

    async def long(samples: Sequence[Sample]) -> list[Outcome]:
        return [Fault("died") if sample.text == "b" else Value(0.0) for sample in samples]

    samples = [Sample(text, "right", prompt_id="t:1") for text in ("a", "b", "right", "b")]
    judges: dict[str, Judge] = {"right": right, "long": long}
    verdicts = await score_group([RIGHT, LONG], judges, PartNames(), samples)
    assert [one.terms["right"] for one in verdicts] == [0.0, 0.0, 1.0, 0.0]
    assert [one.terms.get("long") for one in verdicts] == [0.0, None, 0.0, None]
    assert caplog.messages == ["t:1: long: 2 of 4 are faulted; the first: died"]


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


@pytest.mark.parametrize(("task", "asked"), [("sums", ["right"]), ("poems", ["right", "long"])])
async def test_a_term_for_other_tasks_is_not_asked(task: str, asked: list[str]) -> None:
    async def give(samples: Sequence[Sample]) -> list[Outcome]:
        return [Value(1.0)] * len(samples)

    terms = [RIGHT, replace(LONG, tasks=("prose", "poems"))]
    judges = dict.fromkeys(asked, give)
    (verdict,) = await score_group(terms, judges, PartNames(), [Sample("a", "b", task=task)])
    assert list(verdict.terms) == asked
