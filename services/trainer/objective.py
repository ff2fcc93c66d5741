"""From the log-probabilities of a micro-batch to its part of an update's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from services.trainer.batch import PackedBatch
from services.trainer.grpo.correction import Correction, correct, mismatch_sums
from services.trainer.grpo.kinds import Aggregation, Loss, Tokens
from services.trainer.grpo.kl import kl_estimate
from services.trainer.outputs import TokenOutputs
from services.trainer.sums import TokenSums
from services.trainer.updates import Update
from services.trainer.values import StepValues
from trimaran.config import AlgorithmSection
from trimaran.errors import InputError, InternalError

POLICY, CORRECTION = "policy/", "correction/"
"""Before what the loss, and what the correction, report of each token."""


def sum_names(algorithm: AlgorithmSection) -> list[str]:
    """What a `TokenSums` of this algorithm has. Loss and correction say themselves what they report,
    asked about no tokens."""
    nothing = torch.zeros(0)
    tokens = Tokens(nothing, nothing, torch.zeros(0, dtype=torch.int64), 0)
    return [
        *("loss", "tokens", "packed", "divergence", "logprob", "entropy"),
        *mismatch_sums(nothing, nothing, nothing),
        *(POLICY + name for name in cast(Loss, algorithm.loss)(nothing, tokens).metrics),
        *(CORRECTION + name for name in _correct(algorithm, nothing, nothing, tokens).metrics),
    ]


def _correct(
    algorithm: AlgorithmSection, old_M: torch.Tensor, rollout_M: torch.Tensor, tokens: Tokens
) -> Correction:
    section = algorithm.correction
    return correct(
        old_M,
        rollout_M,
        tokens,
        weights=section.weights,
        cap=section.cap,
        token_bounds=section.token_bounds,
        geometric_bounds=section.geometric_bounds,
    )


@dataclass(frozen=True, slots=True)
class Objective:
    """Of one update. Example: Objective(algorithm, values, weights_M, seed=7)(packed, outputs, sums).backward()"""

    algorithm: AlgorithmSection
    values: StepValues
    weights_M: torch.Tensor
    """float32: of each trained token of the step, with the denominator of the update in it."""
    seed: int

    def __call__(self, packed: PackedBatch, outputs: TokenOutputs, sums: TokenSums) -> torch.Tensor:
        """A scalar with gradient; over micro-batches and ranks these add up to the update's loss."""
        algorithm, places_M = self.algorithm, packed.places_M
        logprobs_M = outputs.logprobs_M
        current_M = logprobs_M.detach()
        rollout_M = self.values.rollout_logprobs_M[places_M]
        old_M = self._old(packed, current_M)
        tokens = Tokens(
            old_logprobs_M=old_M,
            advantages_M=self.values.advantages_M[places_M],
            completions_M=packed.completions_M,
            num_completions=packed.num_completions,
            seed=self.seed,
        )
        found = cast(Loss, algorithm.loss)(logprobs_M, tokens)
        correction = _correct(algorithm, old_M, rollout_M, tokens)
        importance_M = correction.importance_M
        losses_M = importance_M * found.losses_M
        if (kl_M := self._kl(places_M, logprobs_M)) is not None:
            sums.add({"divergence": kl_M.detach().sum()})
            if self.values.kl_M is None:
                losses_M = losses_M + self.values.kl_coefficient * kl_M
        if algorithm.entropy.is_computed:
            if outputs.entropies_M is None:
                raise InternalError("algorithm.entropy: the policy gave no entropies")
            sums.add({"entropy": outputs.entropies_M.detach().sum()})
            losses_M = losses_M - algorithm.entropy.coefficient * outputs.entropies_M
        loss = (self.weights_M[places_M] * losses_M).sum()
        # The loss alone would not do: limits make a finite number of an infinite one.
        sums.require_finite(current_M, old_M, kl_M, outputs.entropies_M)
        sums.add_importance(importance_M)
        own_M = self.values.policy_logprobs_M
        before_M = current_M if own_M is None else own_M[places_M]
        sums.add(mismatch_sums(before_M, rollout_M, importance_M))
        sums.add({POLICY + name: values_M.sum() for name, values_M in found.metrics.items()})
        sums.add({CORRECTION + name: x_M.sum() for name, x_M in correction.metrics.items()})
        sums.add(
            {
                "loss": loss.detach(),
                "tokens": len(packed.targets_M),
                "packed": len(packed.token_ids_N),
                "logprob": current_M.sum(),
            }
        )
        return loss

    def _old(self, packed: PackedBatch, current_M: torch.Tensor) -> torch.Tensor:
        if self.algorithm.correction.old == "rollout":
            return self.values.rollout_logprobs_M[packed.places_M]
        own_M = self.values.policy_logprobs_M
        return current_M if own_M is None else own_M[packed.places_M]

    def _kl(self, places_M: torch.Tensor, logprobs_M: torch.Tensor) -> torch.Tensor | None:
        if self.values.kl_M is not None:
            return self.values.kl_M[places_M]
        if self.values.reference_logprobs_M is None:
            return None
        kl = self.algorithm.kl
        return kl_estimate(
            logprobs_M,
            self.values.reference_logprobs_M[places_M],
            kl.estimator,
            kl.straight_through,
            kl.limit,
        )


def token_weights(
    update: Update, algorithm: AlgorithmSection, device: torch.device
) -> torch.Tensor:
    """float32 [M] of the step, on the device; 0 of what is in other updates.

    Raises InputError where the aggregation gives other than one weight a completion.
    """
    step, completions = update.step, update.completions
    lengths = torch.tensor([step.lengths_B[index] for index in completions], dtype=torch.int64)
    weights = cast(Aggregation, algorithm.aggregation)(lengths)
    if weights.shape != lengths.shape:
        raise InputError(
            f"algorithm.aggregation: {algorithm.aggregation.type} gives {tuple(weights.shape)} weights"
            f" for {len(lengths)} completions; it must give one for each"
        )
    weights_B = torch.zeros(len(step.completions_B), dtype=torch.float64)
    weights_B[torch.tensor(completions, dtype=torch.int64)] = weights
    return step.spread(weights_B).float().to(device)
