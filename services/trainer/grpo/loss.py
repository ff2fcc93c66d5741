"""The clipped GRPO loss. Axes: M trained tokens of a micro-batch, B completions of a mini-batch.

Every token has a weight with the denominator of the whole mini-batch in it, so
a micro-batch's loss is a plain weighted sum, and the sums over any split are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from trimaran.config import AlgorithmSection

MAX_EXPONENT = 20.0
"""Nats, of either sign: exp(20) is 4.9e8, exp(-20) is 2.1e-9.

Sources: MindSpeed-RL's `compute_kl_penalty` (mindspeed_rl/utils/compute.py, low_var_kl) for k3,
verl's policy losses (verl/trainer/ppo/core_algos.py) for the ratio."""
MAX_K3 = 10.0
"""Of one token's k3, after its exponent was limited. Source: MindSpeed-RL, as above."""


def limited_exp(exponents: torch.Tensor) -> torch.Tensor:
    """exp of each exponent, moved into -20..20 first; its gradient is 0 where it was moved."""
    return exponents.clamp(-MAX_EXPONENT, MAX_EXPONENT).exp()


def token_mean(num_tokens_B: Sequence[int]) -> list[float]:
    """The weight of one token of each completion: 1 / all trained tokens of the mini-batch.

    Example: token_mean([3, 0, 1]) == [0.25, 0.0, 0.25]
    Source: DAPO (arXiv 2503.14476), eq. 8. This and its like are named in `trimaran.choices.AGGREGATIONS`.
    """
    total = sum(num_tokens_B)
    return [1.0 / total if count else 0.0 for count in num_tokens_B]


def sequence_mean(num_tokens_B: Sequence[int]) -> list[float]:
    """The same, where every completion counts alike: 1 / (completions * its own trained tokens).

    A completion without trained tokens does not count. Source: DeepSeekMath (arXiv 2402.03300), eq. 3.
    Example: sequence_mean([4, 0, 1]) == [0.125, 0.0, 0.5]
    """
    sequences = sum(1 for count in num_tokens_B if count)
    return [1.0 / (sequences * count) if count else 0.0 for count in num_tokens_B]


def importance_weights(
    old_logprobs_M: torch.Tensor, rollout_logprobs_M: torch.Tensor, cap: float
) -> torch.Tensor:
    """min(exp(old - rollout), cap): truncated importance sampling between engine and trainer.

    Source: IMPALA's truncation (arXiv 1802.01561), applied per token as TRL and verl do.
    """
    return limited_exp(old_logprobs_M - rollout_logprobs_M).clamp(max=cap)


def k3_divergence(logprobs_M: torch.Tensor, reference_logprobs_M: torch.Tensor) -> torch.Tensor:
    """exp(d) - d - 1 with d = reference - policy: unbiased for KL(policy || reference), never < 0.

    At most MAX_K3; there, where d is above 2.61 or below -11, it has no gradient.
    Source: Schulman, "Approximating KL divergence" (2020), estimator k3.
    """
    difference = (reference_logprobs_M - logprobs_M).clamp(-MAX_EXPONENT, MAX_EXPONENT)
    return (difference.exp() - difference - 1.0).clamp(max=MAX_K3)


@dataclass(frozen=True, slots=True)
class TokenValues:
    """What the loss needs of each trained token besides its log-probability, float32 [M].

    Example, of an update whose policy is still that of the rollout, without a KL term:
    TokenValues(logprobs, logprobs, advantages, weights, reference_logprobs=None)
    """

    old_logprobs: torch.Tensor
    """The trainer's, before the first update of the batch."""
    rollout_logprobs: torch.Tensor
    advantages: torch.Tensor
    weights: torch.Tensor
    reference_logprobs: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the tokens of a micro-batch, from which the metrics are made.

    Example:
        zero = torch.zeros(())
        LossSums(loss, clipped=zero, importance=zero, importance_max=zero, divergence=zero)
    """

    loss: torch.Tensor
    """Scalar; its gradient is the micro-batch's part of the mini-batch's gradient."""
    clipped: torch.Tensor
    importance: torch.Tensor
    importance_max: torch.Tensor
    divergence: torch.Tensor


class Loss(Protocol):
    """What `algorithm.loss` names: a pure function, called once a micro-batch on every rank.

    Example:
        def reinforce(logprobs_M, values, algorithm):
            loss = -(values.weights * values.advantages * logprobs_M).sum()
            zero = loss.new_zeros(())
            return LossSums(loss, zero, importance=zero, importance_max=zero, divergence=zero)
    """

    def __call__(
        self, logprobs_M: torch.Tensor, values: TokenValues, algorithm: AlgorithmSection, /
    ) -> LossSums:
        """`logprobs_M`: natural logarithms of the policy's probabilities, float32 [M], with gradient.

        `LossSums.loss` is a sum over tokens in which each counts with its weight: then micro-batches
        and ranks add up to the mini-batch's loss. M is not the same from call to call.
        """
        ...


def grpo_loss(
    logprobs_M: torch.Tensor, values: TokenValues, algorithm: AlgorithmSection
) -> LossSums:
    """sum of w * (-c * min(r * A, clip(r, 1 - low, 1 + high) * A) + beta * k3).

    r = exp(logprob - old), c the importance weight, w the token's weight.
    Example: grpo_loss(logprobs_M, values, AlgorithmSection(kl_coefficient=0.01)).loss.backward()
    Source: DeepSeekMath eq. 3, with DAPO's two clip bounds.
    """
    ratio = limited_exp(logprobs_M - values.old_logprobs)
    clipped_ratio = ratio.clamp(1.0 - algorithm.clip_low, 1.0 + algorithm.clip_high)
    free, clipped = ratio * values.advantages, clipped_ratio * values.advantages
    importance = importance_weights(
        values.old_logprobs, values.rollout_logprobs, algorithm.importance_cap
    )
    losses = -importance * torch.minimum(free, clipped)
    divergence = logprobs_M.new_zeros(())
    if values.reference_logprobs is not None:
        divergences = k3_divergence(logprobs_M, values.reference_logprobs)
        losses = losses + algorithm.kl_coefficient * divergences
        divergence = divergences.detach().sum()
    return LossSums(
        loss=(values.weights * losses).sum(),
        clipped=(clipped < free).detach().sum().float(),
        importance=importance.sum(),
        importance_max=importance.amax() if len(importance) else importance.new_zeros(()),
        divergence=divergence,
    )
