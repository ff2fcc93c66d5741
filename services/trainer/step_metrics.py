"""The metrics of a step's tokens, from sums over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from services.trainer.objective import CORRECTION, POLICY
from services.trainer.sums import Reduces, TokenSums
from services.trainer.updates import Update
from services.trainer.values import KL, KL_COEFFICIENT
from trimaran.config import AlgorithmSection

MISMATCH = {
    "logprob_diff": "logprob_diff/mean",
    "k1": "rollout_kl/k1",
    "k3": "rollout_kl/k3",
    "above_two": "ratio/above_two/share",
    "below_half": "ratio/below_half/share",
}
"""What `mismatch_sums` calls a sum -> what the mean over computed tokens is called."""


def token_metrics(
    ranks: Reduces,
    algorithm: AlgorithmSection,
    sums: TokenSums,
    norms: Sequence[float],
    kl_coefficient: float,
    updates: Sequence[Update],
) -> dict[str, float]:
    """Of the updates that were made; `computed/` stands before what only computed tokens have, which is left
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
        metrics |= _computed(algorithm, totals, importance_max)
    return metrics


def _computed(
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
