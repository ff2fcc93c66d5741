"""The KL divergence to the reference: estimates from single tokens, and an adaptive coefficient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from services.trainer.grpo.ratios import limited

if TYPE_CHECKING:
    import torch

Estimator = Literal["k1", "abs", "k2", "k3"]
MAX_ESTIMATE = 10.0
"""The limit of one token's estimate. Source: MindSpeed-RL's `compute_kl_penalty` (mindspeed_rl/utils/compute.py)."""
MAX_ERROR = 0.2
"""By which share of a horizon the coefficient moves at most. Source: Ziegler et al., as below."""


def kl_estimate(
    logprobs_M: torch.Tensor,
    reference_logprobs_M: torch.Tensor,
    estimator: Estimator = "k3",
) -> torch.Tensor:
    """Estimates of KL(policy || reference), for tokens that the policy sampled, in nats [M].

    With d = logprob - reference, limited to -20..20:
        k1   d                    unbiased, of either sign
        abs  |d|
        k2   d^2 / 2              biased, but its gradient is that of the KL
        k3   exp(-d) - 1 + d      unbiased, never negative

    Each estimate is between -10 and 10, and has no gradient where it was moved there.
    Source: Schulman, "Approximating KL divergence" (2020).
    Example: kl_estimate(logprobs_M, reference_logprobs_M, "k3")
    """
    differences_M = limited(logprobs_M - reference_logprobs_M)
    return _estimate(differences_M, estimator).clamp(-MAX_ESTIMATE, MAX_ESTIMATE)


def _estimate(differences_M: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    match estimator:
        case "k1":
            return differences_M
        case "abs":
            return differences_M.abs()
        case "k2":
            return differences_M.square() / 2
        case "k3":
            return (-differences_M).exp() - 1 + differences_M


def adapt_coefficient(
    coefficient: float, kl: float, target: float, horizon: float, num_completions: int
) -> float:
    """The coefficient of the next step: larger where `kl` was above `target`, smaller where below.

    coefficient * (1 + clip(kl / target - 1, -0.2, 0.2) * num_completions / horizon), and a step as long
    as the horizon or longer changes it by a fifth at most, so that it stays positive.
    Source: Ziegler et al. (arXiv 1909.08593), with verl's `AdaptiveKLController`.
    Example: adapt_coefficient(0.1, kl=0.03, target=0.02, horizon=1000, num_completions=100) is 0.102
    """
    error = min(max(kl / target - 1, -MAX_ERROR), MAX_ERROR)
    return coefficient * (1 + error * min(num_completions / horizon, 1))
