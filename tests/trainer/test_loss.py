from __future__ import annotations

import math

import pytest
import torch

from services.trainer.grpo.loss import (
    TokenValues,
    grpo_loss,
    importance_weights,
    k3_divergence,
    sequence_mean,
    token_mean,
)
from trimaran.config import AlgorithmSection


def values(
    old: list[float],
    advantages: list[float],
    rollout: list[float] | None = None,
    weights: list[float] | None = None,
    reference: list[float] | None = None,
) -> TokenValues:
    return TokenValues(
        torch.tensor(old),
        torch.tensor(rollout or old),
        torch.tensor(advantages),
        torch.tensor(weights or [1.0] * len(old)),
        torch.tensor(reference) if reference else None,
    )


def test_token_mean_weighs_every_token_alike() -> None:
    assert token_mean([3, 0, 1]) == [0.25, 0.0, 0.25]


def test_sequence_mean_weighs_every_completion_alike() -> None:
    assert sequence_mean([4, 0, 1]) == [0.125, 0.0, 0.5]


def test_nothing_to_train_weighs_nothing() -> None:
    assert token_mean([0, 0]) == sequence_mean([0, 0]) == [0, 0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # inside the clip range: -r * A, gradient -r * A
        (1.1, 2.0, -2.2, -2.2),
        # above 1 + high with A > 0: clipped at 1.3, no gradient
        (1.5, 2.0, -2.6, 0.0),
        # above 1 + high with A < 0: the minimum keeps the unclipped term
        (1.5, -2.0, 3.0, 3.0),
        # below 1 - low with A < 0: clipped at 0.8, no gradient
        (0.5, -2.0, 1.6, 0.0),
        # below 1 - low with A > 0: unclipped
        (0.5, 2.0, -1.0, -1.0),
    ],
)
def test_clipped_ratio(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    logprobs = torch.tensor([-1.0 + math.log(ratio)], requires_grad=True)
    algorithm = AlgorithmSection(clip_low=0.2, clip_high=0.3)
    sums = grpo_loss(logprobs, values([-1.0], [advantage]), algorithm)
    sums.loss.backward()
    assert sums.loss.item() == pytest.approx(loss, rel=1e-6)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient, rel=1e-6)
    assert sums.clipped.item() == float(gradient == 0.0)


def test_importance_weights_are_truncated_from_above_only() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0])
    rollout = torch.tensor([-1.0 - math.log(1.5), -1.0 - math.log(4.0), -1.0 + math.log(4.0)])
    assert importance_weights(old, rollout, cap=2.0).tolist() == pytest.approx([1.5, 2.0, 0.25])


def test_importance_weights_scale_loss_and_gradient_but_have_none_themselves() -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    inputs = values([-1.0], [1.0], rollout=[-1.0 - math.log(1.5)])
    sums = grpo_loss(logprobs, inputs, AlgorithmSection(importance_cap=2.0))
    sums.loss.backward()
    assert sums.loss.item() == pytest.approx(-1.5)
    assert logprobs.grad is not None and logprobs.grad.item() == pytest.approx(-1.5)


def test_k3_divergence_by_hand() -> None:
    # d = reference - policy = log 2: 2 - log 2 - 1
    policy = torch.tensor([-2.0, -2.0])
    reference = torch.tensor([-2.0 + math.log(2.0), -2.0])
    assert k3_divergence(policy, reference).tolist() == pytest.approx([1 - math.log(2), 0.0])


def test_divergence_is_added_with_its_coefficient_and_is_not_importance_weighted() -> None:
    logprobs = torch.tensor([-2.0], requires_grad=True)
    inputs = values([-2.0], [0.0], rollout=[-3.0], reference=[-2.0 + math.log(2.0)])
    sums = grpo_loss(logprobs, inputs, AlgorithmSection(kl_coefficient=0.1))
    sums.loss.backward()
    assert sums.loss.item() == pytest.approx(0.1 * (1 - math.log(2)), rel=1e-5)
    # d k3 / d policy = 1 - exp(d) = -1
    assert logprobs.grad is not None and logprobs.grad.item() == pytest.approx(-0.1)
    assert sums.divergence.item() == pytest.approx(1 - math.log(2), rel=1e-5)


def test_token_weights_multiply_the_terms() -> None:
    inputs = values([-1.0, -1.0], [1.0, 1.0], weights=[0.25, 0.5])
    assert grpo_loss(torch.tensor([-1.0, -1.0]), inputs, AlgorithmSection()).loss == -0.75


@pytest.mark.parametrize("nats", [19.0, 200.0, math.inf])
def test_a_reference_far_above_the_policy_costs_a_limited_divergence(nats: float) -> None:
    """Without a limit, 19 nats at a coefficient of 1e-3 make this loss 89,241."""
    logprobs = torch.tensor([-1.0 - nats, -1.0], requires_grad=True)
    inputs = values([-1.0, -1.0], [0.0, 0.0], weights=[0.5, 0.5], reference=[-1.0, -1.1])
    sums = grpo_loss(logprobs, inputs, AlgorithmSection(kl_coefficient=1e-3))
    sums.loss.backward()
    small = math.exp(-0.1) + 0.1 - 1
    assert sums.loss.item() == pytest.approx(1e-3 * 0.5 * (10 + small), rel=1e-4)
    assert sums.divergence.item() == pytest.approx(10 + small, rel=1e-5)
    # d k3 / d policy = 1 - exp(d) where it is not limited, and 0 where it is.
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.5e-3 * (1 - math.exp(-0.1))], rel=1e-4)


def test_a_divergence_is_limited_at_10_from_both_sides() -> None:
    policy = torch.tensor([-2.6, -2.62, -30.0, 0.0, 0.0, 0.0], requires_grad=True)
    reference = torch.tensor([0.0, 0.0, 0.0, -10.9, -11.1, -50.0])
    divergences = k3_divergence(policy, reference)
    divergences.sum().backward()
    assert divergences.tolist() == pytest.approx([9.86, 10, 10, 9.9, 10, 10], abs=0.01)
    assert policy.grad is not None
    assert [bool(g) for g in policy.grad.tolist()] == [True, False, False, True, False, False]


@pytest.mark.parametrize("nats", [25.0, 200.0])
def test_a_ratio_is_limited_at_20_nats_and_has_no_gradient_beyond(nats: float) -> None:
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    sums = grpo_loss(logprobs, values([-1.0 - nats, -1.1], [-1.0, -1.0]), AlgorithmSection())
    sums.loss.backward()
    assert sums.loss.item() == pytest.approx(math.exp(20) + math.exp(0.1), rel=1e-5)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, math.exp(0.1)], rel=1e-5)


def test_importance_weights_are_limited_before_their_cap() -> None:
    old, rollout = torch.zeros(3), torch.tensor([-200.0, -math.inf, 200.0])
    weights = importance_weights(old, rollout, cap=1e30)
    assert weights.tolist() == pytest.approx([math.exp(20), math.exp(20), math.exp(-20)], rel=1e-5)


def test_limits_hide_no_nan() -> None:
    nan, zero = torch.tensor([math.nan]), torch.zeros(1)
    assert importance_weights(nan, zero, cap=2.0).isnan().all()
    assert k3_divergence(nan, zero).isnan().all()
    assert grpo_loss(nan, values([0.0], [1.0]), AlgorithmSection()).loss.isnan()
