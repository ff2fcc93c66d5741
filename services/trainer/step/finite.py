"""Numbers that are not finite: found in weights, and in a batch before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch

from services.trainer.step.batch import StepBatch
from services.trainer.step.sequences import segment_of

LARGEST = torch.finfo(torch.float32).max
"""Advantages become float32."""
MOST_NAMED = 4


def is_finite(tensor: torch.Tensor) -> bool:
    """In one pass without a copy, a tenth of the time of `isfinite().all()` on the host."""
    return not tensor.numel() or bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def find_input_faults(
    step: StepBatch,
    computed: Collection[int],
    rollout_logprobs_M: torch.Tensor,
    advantages_M: torch.Tensor | None,
) -> dict[int, str]:
    """One text for each group whose rewards, advantages or log-probabilities are not finite.

    `computed`: the completions whose advantages and log-probabilities are looked at.
    Example, by place in the batch:
        {0: "group 7: completion 2: log-probability nan of token 5, from rollout-1"}
    """
    bad_M = ~rollout_logprobs_M.isfinite()
    if advantages_M is not None:
        bad_M |= ~(advantages_M.abs() <= LARGEST)  # nor is NaN
    suspects = {*bad_rewards(step)}
    if bad_M.any():  # rare: only then is it worth to look at each
        suspects |= step.groups_where(bad_M, among=computed)
    return {
        place: f"group {step.groups[place].group.number}: "
        + next(_faults_of(step, place, computed, rollout_logprobs_M, advantages_M))
        for place in sorted(suspects)
    }


def bad_rewards(step: StepBatch) -> list[int]:
    """The places of groups with a reward that is not finite, or next to it."""
    return [
        place
        for place, members in enumerate(step.members)
        if any(not abs(step.scores_B[index].reward) <= LARGEST for index in members)
    ]


def _faults_of(
    step: StepBatch,
    place: int,
    computed: Collection[int],
    rollout_logprobs_M: torch.Tensor,
    advantages_M: torch.Tensor | None,
) -> Iterator[str]:
    """A reward first: advantages of other completions may follow from it."""
    completions = step.groups[place].group.completions_G
    names = {
        index: f"completion {completions.index(step.completions_B[index])}"
        for index in step.members[place]
    }
    for index, name in names.items():
        if not abs(reward := step.scores_B[index].reward) <= LARGEST:
            yield f"{name}: reward {reward}"
    for index in filter(computed.__contains__, names):
        name, completion, tokens = names[index], step.completions_B[index], step.tokens(index)
        for number, logprob in enumerate(rollout_logprobs_M[tokens].tolist()):
            if not math.isfinite(logprob):
                maker = segment_of(completion, number).replica
                yield f"{name}: log-probability {logprob} of token {number}, from {maker}"
        for advantage in [] if advantages_M is None else advantages_M[tokens].tolist():
            if not abs(advantage) <= LARGEST:  # nor is NaN
                yield f"{name}: advantage {advantage}"


def describe(faults: Sequence[str]) -> str:
    """In one line; empty for none."""
    rest = len(faults) - MOST_NAMED
    more = f"; and {rest} more" if rest > 0 else ""
    return "; ".join(faults[:MOST_NAMED]) + more
