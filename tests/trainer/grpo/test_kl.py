from __future__ import annotations

import math
from random import Random
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.grpo.kl import Estimator, adapt_coefficient, kl_estimate
from tests.trainer.grpo.tokens import gradient, leaf

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)


def of_one(d: float, estimator: Estimator) -> tuple[float, float]:
    """Value and gradient where the policy is d nats above the reference."""
    logprobs = leaf([-1.0])
    reference = torch.tensor([-1.0 - d], dtype=torch.float64)
    value = kl_estimate(logprobs, reference, estimator)
    return value.item(), gradient(value.sum(), logprobs)[0]


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", -math.log(2), 1.0),
        ("abs", math.log(2), -1.0),
        ("k2", math.log(2) ** 2 / 2, -math.log(2)),
        # d = -log 2: exp(-d) - 1 + d = 2 - 1 - log 2, gradient 1 - exp(-d) = -1
        ("k3", 1 - math.log(2), -1.0),
    ],
)
def test_by_hand(estimator: Estimator, value: float, slope: float) -> None:
    assert of_one(-math.log(2), estimator) == pytest.approx((value, slope))


def test_k3_is_limited_at_10_from_both_sides_and_has_no_gradient_there() -> None:
    logprobs = leaf([-2.6, -2.62, -30.0, 0.0, 0.0, 0.0])
    reference = torch.tensor([0.0, 0.0, 0.0, -10.9, -11.1, -50.0]).double()
    values = kl_estimate(logprobs, reference)
    assert values.tolist() == pytest.approx([9.86, 10, 10, 9.9, 10, 10], abs=0.01)
    slopes = gradient(values.sum(), logprobs)
    assert [bool(slope) for slope in slopes] == [True, False, False, True, False, False]


@pytest.mark.parametrize(
    ("estimator", "d", "value"), [("k1", -13.0, -10.0), ("abs", 13.0, 10.0), ("k2", 13.0, 10.0)]
)
def test_the_limit_holds_for_every_estimator(estimator: Estimator, d: float, value: float) -> None:
    assert of_one(d, estimator) == (value, 0.0)
    assert of_one(math.copysign(math.inf, d), estimator) == (value, 0.0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_limit_hides_no_nan(estimator: Estimator) -> None:
    nan, zero = torch.tensor([math.nan]), torch.zeros(1)
    assert kl_estimate(nan, zero, estimator).isnan().all()
    assert kl_estimate(zero, nan, estimator).isnan().all()
    assert kl_estimate(zero[:0], zero[:0], estimator).shape == (0,)


def two_distributions(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the policy, and the reference's log-probabilities, of five tokens."""
    random = Random(seed)
    logits = leaf([random.uniform(-0.5, 0.5) for _ in range(5)])
    other = torch.tensor([random.uniform(-0.5, 0.5) for _ in range(5)], dtype=torch.float64)
    return logits, other.log_softmax(0)


@given(st.integers(0, 10_000))
def test_k1_and_k3_have_the_kl_as_their_mean(seed: int) -> None:
    logits, reference = two_distributions(seed)
    logprobs = logits.log_softmax(0)
    plain = sum(
        math.exp(new) * (new - old)
        for new, old in zip(logprobs.tolist(), reference.tolist(), strict=True)
    )
    for estimator in ("k1", "k3"):
        estimates = kl_estimate(logprobs, reference, estimator)
        mean = (logprobs.exp() * estimates).sum()
        assert mean.item() == pytest.approx(plain, abs=1e-12)


@given(st.integers(0, 10_000))
def test_k2_has_the_gradient_of_the_kl_as_its_mean_and_k1_has_none(seed: int) -> None:
    logits, reference = two_distributions(seed)
    logprobs = logits.log_softmax(0)
    exact = gradient((logprobs.exp() * (logprobs - reference)).sum(), logits)
    cases: tuple[tuple[Estimator, Any], ...] = (("k2", exact), ("k1", [0.0] * 5))
    for estimator, wanted in cases:
        logprobs = logits.log_softmax(0)
        # Tokens are sampled: their probability is no part of the loss.
        sampled = (logprobs.detach().exp() * kl_estimate(logprobs, reference, estimator)).sum()
        assert gradient(sampled, logits) == pytest.approx(wanted, abs=1e-9)


def test_the_coefficient_follows_the_target() -> None:
    # 50% above: limited to 20%, times a tenth of the horizon
    assert adapt_coefficient(0.1, 0.03, 0.02, 1000, 100) == pytest.approx(0.102)
    # 10% below
    assert adapt_coefficient(0.1, 0.018, 0.02, 1000, 100) == pytest.approx(0.099)
    assert adapt_coefficient(0.1, 0.0, 0.02, 1000, 100) == pytest.approx(0.098)
    assert adapt_coefficient(0.1, 0.02, 0.02, 1000, 100) == 0.1
    # a horizon shorter than the step: a fifth all the same
    assert adapt_coefficient(0.1, 0.0, 0.02, 10, 1000) == pytest.approx(0.08)


@given(st.floats(1e-3, 1), st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0.01, 0.5))
def test_the_coefficient_stays_positive_and_moves_by_a_fifth_at_most(
    start: float, kls: list[float], target: float
) -> None:
    now = start
    for kl in kls:
        after = adapt_coefficient(now, kl, target, 100, 100)
        assert 0.8 * now <= after * (1 + 1e-12) and after <= 1.2 * now * (1 + 1e-12)
        assert after > 0
        assert (after > now) == (kl > target) or after == now
        now = after
