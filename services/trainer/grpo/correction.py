"""Correction for tokens that the rollout sampled with other probabilities than the trainer's.

The *ratio* of a token is its probability by the trainer, before the first update of the batch, over
that by the rollout engine. Axes: M trained tokens of a micro-batch, B completions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from services.trainer.grpo.kinds import Tokens
from services.trainer.grpo.kl import kl_estimate
from services.trainer.grpo.ratios import limited_exp

if TYPE_CHECKING:
    import torch

Weights = Literal["token", "sequence", "none"]
Bounds = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Correction:
    """What multiplies the loss of each token.

    Example: losses_M * correct(old_logprobs_M, rollout_logprobs_M, tokens, cap=2.0).importance_M
    """

    importance_M: torch.Tensor
    """float32, without gradient; 0 where a token or its completion is masked."""
    metrics: Mapping[str, torch.Tensor]
    """A number a token, float32 [M], as in `TokenLosses`."""


def correct(
    old_logprobs_M: torch.Tensor,
    rollout_logprobs_M: torch.Tensor,
    tokens: Tokens,
    *,
    weights: Weights = "token",
    cap: float | None = None,
    token_bounds: Bounds | None = None,
    geometric_bounds: Bounds | None = None,
) -> Correction:
    """The correction of a micro-batch; `tokens` says which completion each token is of.

    `weights`: a token's importance is its own ratio, the product of its completion's ratios, or 1.
    `cap`: it is at most that (truncated importance sampling: IMPALA, arXiv 1802.01561).
    `token_bounds`: it is 0 where the token's ratio is outside (IcePop, of Ring-1T, arXiv 2510.18855).
    `geometric_bounds`: it is 0 where the geometric mean of the completion's ratios is outside (verl's
    `seq_mean_k1`, verl/trainer/ppo/rollout_corr_helper.py). The bounds themselves are inside.
    A masked token stays in the loss's denominator.

    Example: correct(old_logprobs_M, rollout_logprobs_M, tokens, weights="sequence", cap=2.0)
    """
    logs_M = (old_logprobs_M - rollout_logprobs_M).detach()
    importance_M = _weigh(logs_M, tokens, weights)
    metrics: dict[str, torch.Tensor] = {}
    if cap is not None and weights != "none":
        metrics["capped/share"] = (importance_M > cap).float()
        importance_M = importance_M.clamp(max=cap)
    masked_M = logs_M.new_zeros(logs_M.shape).bool()
    if token_bounds is not None:
        masked_M = masked_M | _outside(limited_exp(logs_M), token_bounds)
    if geometric_bounds is not None:
        masked_B = _outside(limited_exp(tokens.mean(logs_M)), geometric_bounds)
        masked_M = masked_M | masked_B[tokens.completions_M]
    if token_bounds or geometric_bounds:
        metrics["masked/share"] = masked_M.float()
    return Correction(importance_M.masked_fill(masked_M, 0.0), metrics)


def mismatch_sums(
    old_logprobs_M: torch.Tensor, rollout_logprobs_M: torch.Tensor, importance_M: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Scalar sums over the tokens, which add up over micro-batches and ranks; divide them by their tokens.

    logprob_diff      |old - rollout|, in nats
    k1                rollout - old: estimates KL(rollout || trainer), and is the mean difference negated
    k3                the same with less variance and never negative, at most 10 a token
    above_two         tokens whose ratio is above 2
    below_half        tokens whose ratio is below 1/2
    importance, importance_squared
                      w and w^2, for the effective sample size (sum w)^2 / (n * sum w^2) of n tokens: the
                      share of tokens that equal weights would need for the same variance

    Example: sums = mismatch_sums(old_logprobs_M, rollout_logprobs_M, correction.importance_M)
    """
    logs_M = (old_logprobs_M - rollout_logprobs_M).detach()
    ratios_M = limited_exp(logs_M)
    return {
        "logprob_diff": logs_M.abs().sum(),
        "k1": -logs_M.sum(),
        "k3": kl_estimate(rollout_logprobs_M, old_logprobs_M, "k3").detach().sum(),
        "above_two": (ratios_M > 2).float().sum(),
        "below_half": (ratios_M < 0.5).float().sum(),
        "importance": importance_M.sum(),
        "importance_squared": importance_M.square().sum(),
    }


def _weigh(logs_M: torch.Tensor, tokens: Tokens, weights: Weights) -> torch.Tensor:
    match weights:
        case "token":
            return limited_exp(logs_M)
        case "sequence":
            sums_B = logs_M.new_zeros(tokens.num_completions).index_add(
                0, tokens.completions_M, logs_M
            )
            return limited_exp(sums_B)[tokens.completions_M]
        case "none":
            return logs_M.new_ones(logs_M.shape)


def _outside(ratios: torch.Tensor, bounds: Bounds) -> torch.Tensor:
    """A NaN is not outside, so that no bound hides it."""
    low, high = bounds
    return (ratios < low) | (ratios > high)
