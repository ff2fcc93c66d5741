"""Numbers that are not finite: found in weights, and in a batch before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from services.trainer.batch import GroupSamples, TrainingSample
from trimaran.types import Score, ScoredGroup

LARGEST = torch.finfo(torch.float32).max
"""Advantages become float32."""
MOST_NAMED = 4


def is_finite(tensor: torch.Tensor) -> bool:
    """In one pass without a copy, a tenth of the time of `isfinite().all()` on the host."""
    return not tensor.numel() or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def find_input_faults(
    groups: Sequence[ScoredGroup], samples: Sequence[GroupSamples]
) -> tuple[str, ...]:
    """One text a group whose rewards, advantages or log-probabilities are not finite.

    `samples`: of each group those that are trained, as `prepare_mini_batch` gives them.
    Example: "group 7: completion 2: log-probability nan of token 5, from rollout-1"
    """
    faults = []
    for scored, trained in zip(groups, samples, strict=True):
        if fault := next(_faults_of(scored, trained), None):
            faults.append(f"group {scored.group.number}: {fault}")
    return tuple(faults)


def _faults_of(scored: ScoredGroup, trained: GroupSamples) -> Iterator[str]:
    for index, verdict in enumerate(scored.verdicts_G):
        if isinstance(verdict, Score) and not abs(verdict.reward) <= LARGEST:
            yield f"completion {index}: reward {verdict.reward}"
    for sample in trained:
        for fault in _sample_faults(sample):
            index = scored.group.completions_G.index(sample.completion)
            yield f"completion {index}: {fault}"


def _sample_faults(sample: TrainingSample) -> Iterator[str]:
    if not abs(sample.advantage) <= LARGEST:  # nor is NaN
        yield f"advantage {sample.advantage}"
    completion = sample.completion
    for place, logprob in enumerate(completion.logprobs_T):
        if not math.isfinite(logprob):
            segment = next(s for s in completion.segments if s.start <= place < s.end)
            yield f"log-probability {logprob} of token {place}, from {segment.replica}"


def describe(faults: Sequence[str]) -> str:
    """In one line; empty for none."""
    rest = len(faults) - MOST_NAMED
    more = f"; and {rest} more" if rest > 0 else ""
    return "; ".join(faults[:MOST_NAMED]) + more
