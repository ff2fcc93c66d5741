"""Advantages by hand, and against plain loops over completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from statistics import fmean, pstdev, stdev, variance
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.trainer.grpo.advantages import (
    BestOfGroup,
    Gdpo,
    GroupAdvantage,
    MtGrpo,
    Opo,
    PassAtK,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    ReMax,
    Rloo,
)
from services.trainer.grpo.kinds import Advantage, Rewards, Turns
from trimaran.errors import InputError


def batch(
    groups: Sequence[Sequence[float]],
    lengths: Sequence[int] | None = None,
    terms: dict[str, list[float]] | None = None,
    term_weights: dict[str, float] | None = None,
    greedy: list[float] | None = None,
    penalties: list[float] | None = None,
) -> Rewards:
    """Of the total rewards of each group; one token a completion where nothing else is said."""
    totals = [reward for group in groups for reward in group]
    places = [place for place, group in enumerate(groups) for _ in group]

    def tensor(numbers: Sequence[float]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float64)

    return Rewards(
        totals_B=tensor(totals),
        terms={name: tensor(numbers) for name, numbers in (terms or {}).items()},
        term_weights=term_weights or {},
        groups_B=torch.tensor(places, dtype=torch.int64),
        lengths_B=torch.tensor([1] * len(totals) if lengths is None else lengths).long(),
        sampled_B=torch.tensor([1] * len(totals) if lengths is None else lengths).long(),
        greedy_P=None if greedy is None else tensor(greedy),
        penalties_M=None if penalties is None else tensor(penalties),
    )


def values(advantage: Advantage, rewards: Rewards) -> list[float]:
    answer = advantage(rewards)
    assert answer.dtype == torch.float64
    return answer.tolist()


# By hand


def test_mt_grpo_adds_what_a_turn_was_worth_among_turns_of_its_number() -> None:
    # Turns 0: rewards 1, 0 and none; turns 1: 3 alone, as the others are last or none.
    nan = math.nan
    rewards = replace(
        batch([[1, 0, 0.5]], lengths=[4, 2, 1]),
        turns=Turns(
            torch.tensor([1, 3, 9, 0, 2, nan]).double(),
            torch.tensor([0, 0, 0, 1, 1, 2]),
            torch.tensor([0, 1, 2, 0, 1, 0]),
            torch.tensor([0, 0, 1, 2, 3, 4, 5]),
        ),
    )
    # Above the mean of rewards by 0.5, -0.5 and 0; above that of turns 0 by 0.5 and -0.5.
    plain = values(MtGrpo(normalize_std=False, turn_weight=0.5), rewards)
    assert plain == [0.75, 0.75, 0.5, 0.5, -0.75, -0.5, 0.0]
    # The rewards' deviation is 0.5, that of turns 0 is sqrt(0.5).
    one, turn = 0.5 / (0.5 + 1e-4), 0.5 / (math.sqrt(0.5) + 1e-4)
    want = [one + turn, one + turn, one, one, -one - turn, -one, 0.0]
    assert values(MtGrpo(), rewards) == pytest.approx(want, abs=1e-12)


def test_mt_grpo_compares_turns_of_a_group_alone() -> None:
    turns = Turns(
        torch.tensor([1, 0, 1, 0, 5, 0, 5, 0]).double(),
        torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]),
        torch.tensor([0, 1] * 4),
        torch.tensor([0, 3, 4, 7]),
    )
    rewards = replace(batch([[1, 1], [1, 1]]), turns=turns)
    assert values(MtGrpo(), rewards) == [0.0] * 4


def test_mt_grpo_without_rewards_of_turns_is_the_group_advantage() -> None:
    rewards = batch([[1, 0, 0.5], [0.1, 0.1]], lengths=[2, 1, 0, 1, 1])
    a, b, _, c, d = values(GroupAdvantage(), rewards)
    assert values(MtGrpo(), rewards) == [a, a, b, c, d]


def test_opo_counts_the_tokens_of_a_completion_that_does_not_train() -> None:
    masked = replace(batch([[1, 0]], lengths=[1, 3]), lengths_B=torch.tensor([1, 0]))
    assert values(Opo(), masked) == [0.75, -0.25]


def test_remax_without_greedy_answers_is_refused() -> None:
    with pytest.raises(InputError, match="greedy answer"):
        ReMax()(batch([[1, 0]]))


@pytest.mark.parametrize("advantage", [Gdpo(), PassAtK()])
def test_scores_alone_cannot_take_a_penalty(advantage: Advantage) -> None:
    with pytest.raises(InputError, match=r"set algorithm\.kl\.place: loss"):
        advantage(batch([[1, 0]], penalties=[0.0, 0.0]))


@pytest.mark.parametrize(
    ("kind", "options"),
    [(PassAtK, {"k": 0}), (GroupAdvantage, {"normalise": True}), (Gdpo, {"whiten": True})],
)
def test_wrong_options_are_refused(kind: type[Advantage], options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        kind.model_validate(options)


# Nothing to learn

UNWHITENED = [
    GroupAdvantage(),
    GroupAdvantage(normalize_std=False),
    Rloo(),
    Opo(),
    PassAtK(k=2),
    BestOfGroup(normalize_std=True),
]
WHITENED = [
    ReinforcePlusPlus(),
    ReinforcePlusPlusBaseline(),
    Gdpo(),
    *(kind(whiten=True) for kind in (GroupAdvantage, Rloo, Opo, PassAtK, BestOfGroup)),
]


@pytest.mark.parametrize("advantage", UNWHITENED)
def test_a_group_with_equal_rewards_or_one_has_exactly_zero(advantage: Advantage) -> None:
    rewards = batch([[0.1] * 3, [0.7], [1, 0, 0]], lengths=[7, 3, 11, 2, 1, 1, 1])
    got = values(advantage, rewards)
    assert got[:4] == [0.0] * 4
    assert got[4] != 0


@pytest.mark.parametrize("advantage", [*UNWHITENED, *WHITENED])
@pytest.mark.parametrize(
    ("groups", "lengths"),
    [([], []), ([[0.1] * 3], [2, 3, 1]), ([[0.1, 0.1], [], [0.1]], [2, 1, 1])],
)
def test_a_batch_without_differences_teaches_nothing(
    advantage: Advantage, groups: list[list[float]], lengths: list[int]
) -> None:
    totals = [reward for group in groups for reward in group]
    rewards = batch(groups, lengths, {"rule": totals}, {"rule": 0.7})
    num = sum(lengths) if advantage.per_token else len(totals)
    assert values(advantage, rewards) == [0.0] * num


@pytest.mark.parametrize("advantage", WHITENED)
def test_a_completion_without_tokens_is_in_no_statistic_of_the_batch(advantage: Advantage) -> None:
    other = -1e3 / 3  # beside which 0.1 would lose its last digits
    rewards = batch([[0.1], [0.1], [other]], [2, 1, 0], {"rule": [0.1, 0.1, other]}, {"rule": 1})
    assert values(advantage, rewards) == [0.0] * 3


# Against plain loops


@dataclass
class Completion:
    score: float
    terms: tuple[float, float]
    penalties: list[float]

    @property
    def total(self) -> float:
        return self.score - sum(self.penalties)


Groups = list[list[Completion]]
TERM_WEIGHTS = {"a": 0.5, "b": -2.0}


@st.composite
def random_groups(draw: st.DrawFn, penalties: bool = False) -> Groups:
    """Some with equal scores, some of one completion, some completions without tokens."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    random = Random(draw(st.integers(0, 1 << 32)))

    def completion() -> Completion:
        length = random.choice([0, 1, 2, 5])
        score = random.choice([0.0, 1.0, 0.1, random.gauss(0, 2)])
        terms = (random.choice([0.0, 1.0, math.nan]), random.choice([math.nan, random.gauss(0, 3)]))
        costs = [random.gauss(0, 0.1) * penalties for _ in range(length)]
        return Completion(score, terms, costs)

    return [[completion() for _ in range(size)] for size in sizes]


def as_rewards(groups: Groups, penalties: bool = False) -> Rewards:
    flat = [one for group in groups for one in group]
    return batch(
        [[one.total for one in group] for group in groups],
        [len(one.penalties) for one in flat],
        {"a": [one.terms[0] for one in flat], "b": [one.terms[1] for one in flat]},
        TERM_WEIGHTS,
        [float(place) for place, _ in enumerate(groups)],
        [cost for one in flat for cost in one.penalties] if penalties else None,
    )


def plain_group(group: list[Completion]) -> list[float]:
    totals = [one.total for one in group]
    spread = stdev(totals) if len(totals) > 1 else 0.0
    return [(total - fmean(totals)) / (spread + 1e-4) for total in totals]


def plain_rloo(group: list[Completion]) -> list[float]:
    answer = []
    for place, one in enumerate(group):
        others = [other.total for other in group[:place] + group[place + 1 :]]
        answer.append(one.total - fmean(others) if others else 0.0)
    return answer


def plain_opo(group: list[Completion]) -> list[float]:
    by_token = [one.total for one in group for _ in one.penalties]
    baseline = fmean(by_token) if by_token else 0.0
    return [one.total - baseline for one in group]


def plain_pass_at_k(group: list[Completion]) -> list[float]:
    """The paper's first form: form every set of k, and average over those that hold a completion."""
    places = range(len(group))
    sets = list(combinations(places, min(2, len(group))))
    rewards = [float(max(group[place].score >= 0.5 for place in one)) for one in sets]
    spread = pstdev(rewards)
    if spread == 0:
        return [0.0] * len(group)
    of_sets = [(reward - fmean(rewards)) / spread for reward in rewards]
    return [
        fmean(value for one, value in zip(sets, of_sets, strict=True) if place in one)
        for place in places
    ]


def plain_best(group: list[Completion]) -> list[float]:
    """What the best reward of all loses without each."""
    totals = [one.total for one in group]
    return [
        max(totals) - max(totals[:place] + totals[place + 1 :]) if len(totals) > 1 else 0.0
        for place in range(len(totals))
    ]


def plain_whitened(numbers: Sequence[float], lengths: Sequence[int]) -> list[float]:
    tokens = [one for one, length in zip(numbers, lengths, strict=True) for _ in range(length)]
    if not tokens:
        return [0.0] * len(numbers)
    spread = math.sqrt((variance(tokens) if len(tokens) > 1 else 0.0) + 1e-8)
    return [(one - fmean(tokens)) / spread for one in numbers]


PLAIN: list[tuple[type[Any], dict[str, Any], Callable[[list[Completion]], list[float]]]] = [
    (GroupAdvantage, {}, plain_group),
    (Rloo, {}, plain_rloo),
    (Opo, {}, plain_opo),
    (PassAtK, {"k": 2}, plain_pass_at_k),
    (BestOfGroup, {}, plain_best),
]


def near(want: Sequence[float]) -> Any:
    return pytest.approx(want, rel=1e-7, abs=1e-8)


def trained(numbers: Sequence[float], rewards: Rewards) -> list[float]:
    """Of completions with tokens: only these have an advantage that anybody uses."""
    assert len(numbers) == len(rewards.lengths_B)
    return [
        one for one, length in zip(numbers, rewards.lengths_B.tolist(), strict=True) if length > 0
    ]


@pytest.mark.parametrize(("kind", "options", "plain"), PLAIN)
@given(groups=random_groups())
def test_group_by_group_it_is_the_plain_formula(
    kind: type[Any],
    options: dict[str, Any],
    plain: Callable[[list[Completion]], list[float]],
    groups: Groups,
) -> None:
    rewards = as_rewards(groups)
    want = [value for group in groups for value in plain(group)]
    if kind is Opo:
        got = kind(**options)(rewards).tolist()
        assert trained(got, rewards) == near(trained(want, rewards))
        return
    assert kind(**options)(rewards).tolist() == near(want)
    lengths = rewards.lengths_B.tolist()
    whitened = kind(**options, whiten=True)(rewards).tolist()
    assert trained(whitened, rewards) == near(trained(plain_whitened(want, lengths), rewards))


@given(random_groups())
def test_remax_and_the_baseline_of_reinforce_plus_plus_are_the_plain_formulas(
    groups: Groups,
) -> None:
    rewards = as_rewards(groups)
    want = [one.total - place for place, group in enumerate(groups) for one in group]
    assert ReMax()(rewards).tolist() == near(want)
    centred = [
        one.total - fmean(other.total for other in group) for group in groups for one in group
    ]
    want = plain_whitened(centred, rewards.lengths_B.tolist())
    got = ReinforcePlusPlusBaseline()(rewards).tolist()
    assert trained(got, rewards) == near(trained(want, rewards))


@given(random_groups(penalties=True))
def test_reinforce_plus_plus_is_a_loop_over_tokens_from_the_last(groups: Groups) -> None:
    returns: list[float] = []
    for group in groups:
        for one in group:
            backwards: list[float] = []
            for place, cost in enumerate(reversed(one.penalties)):
                later = backwards[-1] if backwards else 0.0
                backwards.append((one.score if place == 0 else 0.0) - cost + later)
            returns += reversed(backwards)
    want = plain_whitened(returns, [1] * len(returns))
    assert ReinforcePlusPlus()(as_rewards(groups, penalties=True)).tolist() == near(want)


@given(random_groups())
def test_gdpo_is_the_plain_formula(groups: Groups) -> None:
    sums: list[float] = []
    for group in groups:
        for one in group:
            value = 0.0
            for place, weight in enumerate(TERM_WEIGHTS.values()):
                known = [other.terms[place] for other in group]
                known = [term for term in known if not math.isnan(term)]
                if not math.isnan(one.terms[place]):
                    spread = stdev(known) if len(known) > 1 else 0.0
                    value += weight * (one.terms[place] - fmean(known)) / (spread + 1e-4)
            sums.append(value)
    assert Gdpo()(as_rewards(groups)).tolist() == near(plain_whitened(sums, [1] * len(sums)))
