from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.grpo.correction import Bounds, Weights, correct, mismatch_sums
from services.trainer.grpo.kinds import Tokens
from tests.trainer.grpo.tokens import make_tokens, random_tokens

LOG = math.log
LIMITS: Any = {"cap": 2.0, "token_bounds": (0.5, 2.0), "geometric_bounds": (0.5, 2.0)}


def by_ratio(ratios: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Trainer's and rollout's log-probabilities with these ratios."""
    old = torch.full((len(ratios),), -3.0, dtype=torch.float64)
    return old, old - torch.tensor(ratios, dtype=torch.float64).log()


def test_a_bound_itself_is_inside() -> None:
    tokens = make_tokens([0.0], [1.0])
    for name in ("token_bounds", "geometric_bounds"):
        bounds: Any = {name: (1.0, 1.0)}
        assert correct(*by_ratio([1.0]), tokens, **bounds).importance_M.tolist() == [1]


def test_both_bounds_mask_and_a_mask_is_of_the_ratio_before_its_cap() -> None:
    tokens = make_tokens([0.0] * 3, [1.0] * 3, [0, 1, 2])
    bounds: Any = {"token_bounds": (0.5, 3.0), "geometric_bounds": (0.9, 9.0)}
    answer = correct(*by_ratio([1.0, 4.0, 1.0]), tokens, cap=2.0, **bounds)
    assert answer.importance_M.tolist() == pytest.approx([1, 0, 1])
    metrics = {key: numbers.tolist() for key, numbers in answer.metrics.items()}
    assert metrics == {"capped/share": [0, 1, 0], "masked/share": [0, 1, 0]}


def test_importance_has_no_gradient_and_stays_float32() -> None:
    old = torch.tensor([-1.0, -2.0], requires_grad=True)
    rollout = torch.tensor([-1.5, -2.0])
    tokens = make_tokens([0.0] * 2, [1.0] * 2, dtype=torch.float32)
    answer = correct(old, rollout, tokens, cap=2.0, token_bounds=(0.1, 9.0))
    for numbers in (answer.importance_M, *answer.metrics.values()):
        assert not numbers.requires_grad and numbers.dtype == torch.float32
    for total in mismatch_sums(old, rollout, answer.importance_M).values():
        assert not total.requires_grad and total.dtype == torch.float32 and total.shape == ()


@pytest.mark.parametrize("weights", ["token", "sequence"])
def test_ratios_are_limited_at_20_nats_before_their_cap(weights: Weights) -> None:
    old, rollout = torch.zeros(3), torch.tensor([-200.0, -math.inf, 200.0])
    tokens = replace(make_tokens([0.0] * 3, [1.0] * 3, [0, 1, 2]), advantages_M=torch.ones(3))
    got = correct(old, rollout, tokens, weights=weights, cap=1e30).importance_M.tolist()
    assert got == pytest.approx([math.exp(20), math.exp(20), math.exp(-20)], rel=1e-5)


@pytest.mark.parametrize("weights", ["token", "sequence"])
def test_no_bound_and_no_cap_hides_a_nan(weights: Weights) -> None:
    nan, zero = torch.tensor([math.nan]), torch.zeros(1)
    tokens = make_tokens([0.0], [1.0])
    answer = correct(nan, zero, tokens, weights=weights, **LIMITS)
    assert answer.importance_M.isnan().all()


@pytest.mark.parametrize("weights", ["token", "sequence", "none"])
def test_of_no_tokens_nothing_fails(weights: Weights) -> None:
    none = torch.zeros(0)
    for num_completions in (0, 2):
        tokens = replace(make_tokens([], []), num_completions=num_completions)
        answer = correct(none, none, tokens, weights=weights, **LIMITS)
        assert answer.importance_M.shape == (0,)
        sums = mismatch_sums(none, none, answer.importance_M)
        assert set(map(float, sums.values())) == {0.0}


def plain_importance(
    ratios: list[list[float]], weights: Weights, cap: float, inside: Bounds, geometric: Bounds
) -> list[float]:
    answer: list[float] = []
    for completion in ratios:
        product = math.prod(completion)
        mean = product ** (1 / len(completion))
        for ratio in completion:
            weight = {"token": ratio, "sequence": product, "none": 1.0}[weights]
            kept = inside[0] <= ratio <= inside[1] and geometric[0] <= mean <= geometric[1]
            answer.append(min(weight, cap) if kept else 0.0)
    return answer


@given(random_tokens(), st.sampled_from(["token", "sequence", "none"]))
def test_it_is_the_plain_formula(drawn: tuple[list[float], Tokens], weights: Weights) -> None:
    rollout, tokens = drawn
    old_M, rollout_M = tokens.old_logprobs_M, torch.tensor(rollout, dtype=torch.float64)
    ratios: list[list[float]] = [[] for _ in range(tokens.num_completions)]
    triples = zip(old_M.tolist(), rollout, tokens.completions_M.tolist(), strict=True)
    for old, sampled, place in triples:
        ratios[place].append(math.exp(old) / math.exp(sampled))
    inside, geometric = (0.6, 1.7), (0.8, 1.25)
    bounds: Any = {"token_bounds": inside, "geometric_bounds": geometric}
    answer = correct(old_M, rollout_M, tokens, weights=weights, cap=1.1, **bounds)
    want = plain_importance(ratios, weights, 1.1, inside, geometric)
    assert answer.importance_M.tolist() == pytest.approx(want)
    flat = [ratio for completion in ratios for ratio in completion]
    sums = {
        key: total.item()
        for key, total in mismatch_sums(old_M, rollout_M, answer.importance_M).items()
    }
    num = len(flat)
    assert sums["logprob_diff"] / num == pytest.approx(fmean(abs(LOG(one)) for one in flat))
    assert sums["k1"] / num == pytest.approx(-fmean(map(LOG, flat)), abs=1e-12)
    k3 = fmean(min(one - 1 - LOG(one), 10) for one in flat)
    assert sums["k3"] / num == pytest.approx(k3, abs=1e-12)
    assert sums["above_two"] == sum(one > 2 for one in flat)
    assert sums["below_half"] == sum(one < 0.5 for one in flat)
    assert sums["importance"] == pytest.approx(sum(want))
    assert sums["importance_squared"] == pytest.approx(sum(one**2 for one in want))
