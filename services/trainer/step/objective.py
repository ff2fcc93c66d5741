"""The loss of a micro-batch, from its log-probabilities, and the metrics of the tokens that it has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

import torch

from services.trainer.grpo.correction import Correction, correct, mismatch_sums
from services.trainer.grpo.kinds import Aggregation, Loss, Tokens
from services.trainer.grpo.kl import kl_estimate
from services.trainer.step.batch import PackedBatch, StepBatch
from services.trainer.step.outputs import TokenOutputs
from services.trainer.step.sums import Reduces, TokenSums
from services.trainer.step.updates import Update
from services.trainer.step.values import KL, KL_COEFFICIENT, StepValues
from trimaran.config import AlgorithmSection
from trimaran.errors import InputError, InternalError

MISMATCH = {
    "logprob_diff": "logprob_diff/mean",
    "k1": "rollout_kl/k1",
    "k3": "rollout_kl/k3",
    "above_two": "ratio/above_two/share",
    "below_half": "ratio/below_half/share",
}
"""What `mismatch_sums` calls a sum -> what the mean over computed tokens is called."""
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
    """The objective of one update. Example: Objective(algorithm, values, weights_M, seed=7)(packed, outputs, sums).backward()"""

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
        reference_M = self.values.reference_logprobs_M[places_M]
        return kl_estimate(logprobs_M, reference_M, self.algorithm.kl.estimator)


def token_weights(
    step: StepBatch, update: Update, algorithm: AlgorithmSection, device: torch.device
) -> torch.Tensor:
    """float32 [M] of the step, on the device; 0 of what is in other updates. `step`: of whole completions.

    Raises InputError where the aggregation gives other than one weight a completion.
    """
    completions = [index for place in update.groups for index in step.members[place]]
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


def token_metrics(
    ranks: Reduces,
    algorithm: AlgorithmSection,
    sums: TokenSums,
    norms: Sequence[float],
    kl_coefficient: float,
    updates: Sequence[Update],
) -> dict[str, float]:
    """Metrics of the updates that were made; `computed/` stands before what only computed tokens have, which is left
    out but for their number where none was: nothing was measured.

    All ranks must call.
    """
    totals, importance_max = sums.reduced(ranks)
    num_trained = sum(update.num_trained for update in updates)
    metrics = {
        "trainer/packed_tokens": totals["packed"],
        "trainer/trained_tokens": float(num_trained),
        "trainer/computed/tokens": totals["tokens"],
    }
    if algorithm.kl.coefficient:
        metrics[KL_COEFFICIENT] = kl_coefficient
    if not updates:
        return metrics
    metrics |= {"trainer/loss": totals["loss"] / len(updates), "trainer/grad_norm": fmean(norms)}
    # Tokens that are not computed have no advantage, and are never clipped.
    metrics |= {
        f"trainer/{name}": total / max(num_trained, 1)
        for name, total in totals.items()
        if name.startswith(POLICY)
    }
    if totals["tokens"]:
        metrics |= _computed_metrics(algorithm, totals, importance_max)
    return metrics


def _computed_metrics(
    algorithm: AlgorithmSection, totals: Mapping[str, float], importance_max: float
) -> dict[str, float]:
    """Means over the computed tokens, of which there are some."""
    computed, square = totals["tokens"], totals["importance_squared"]
    metrics = {
        "trainer/computed/importance_weight/mean": totals["importance"] / computed,
        "trainer/computed/importance_weight/max": importance_max,
        "trainer/computed/effective_sample_size/share": (
            totals["importance"] ** 2 / (computed * square) if square else 0.0
        ),
        # The mean of -log p over sampled tokens estimates the entropy without another pass.
        "trainer/computed/entropy": -totals["logprob"] / computed,
    }
    metrics |= {
        f"trainer/computed/{key}": totals[name] / computed for name, key in MISMATCH.items()
    }
    metrics |= {
        f"trainer/computed/{name}": total / computed
        for name, total in totals.items()
        if name.startswith(CORRECTION)
    }
    if algorithm.entropy.is_computed:
        metrics["trainer/computed/exact_entropy"] = totals["entropy"] / computed
    if algorithm.kl.coefficient:  # every trained token is then computed
        metrics[KL] = totals["divergence"] / computed
    return metrics
