"""Batches with a number in them that is not finite."""

from __future__ import annotations

from dataclasses import replace

from tests.trainer.batches import random_batch
from trimaran.types import Score, ScoredGroup, TrainingBatch


def with_logprob(scored: ScoredGroup, logprob: float, place: int = 1) -> ScoredGroup:
    """That of one token of the first completion."""
    first, *rest = scored.group.completions_G
    logprobs = list(first.logprobs_S)
    logprobs[place] = logprob
    first = replace(first, logprobs_S=tuple(logprobs))
    return replace(scored, group=replace(scored.group, completions_G=(first, *rest)))


def with_rewards(scored: ScoredGroup, *rewards: float) -> ScoredGroup:
    return replace(scored, verdicts_G=tuple(Score(reward) for reward in rewards))


def change(batch: TrainingBatch, place: int, scored: ScoredGroup) -> TrainingBatch:
    groups = list(batch.groups)
    groups[place] = scored
    return replace(batch, groups=tuple(groups))


def bad_batch(step: int, logprob: float = float("nan")) -> TrainingBatch:
    """Group 1 has a log-probability that is not finite."""
    batch = random_batch(step)
    return change(batch, 1, with_logprob(batch.groups[1], logprob))


def exploding_batch(step: int) -> TrainingBatch:
    """Finite as it arrives, without the deviation; the gradient of group 1 is not."""
    batch = random_batch(step)
    return change(batch, 1, with_rewards(batch.groups[1], 1e38, -1e38, 0.0))
