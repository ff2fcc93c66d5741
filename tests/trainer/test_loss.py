from __future__ import annotations

import math

import pytest
import torch

from services.trainer.grpo.loss import (
    TokenValues,
    grpo_loss,
    importance_weights,
    k3_divergence,
    token_weights,
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
    assert token_weights([3, 0, 1], "token_mean") == [0.25, 0.0, 0.25]


def test_sequence_mean_weighs_every_completion_alike() -> None:
    assert token_weights([4, 0, 1], "sequence_mean") == [0.125, 0.0, 0.5]


def test_nothing_to_train_weighs_nothing() -> None:
    assert token_weights([0, 0], "token_mean") == token_weights([0, 0], "sequence_mean") == [0, 0]


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
