"""Random training batches."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trimaran.types import (
    Completion,
    Faulted,
    Group,
    Message,
    Prompt,
    Proof,
    Score,
    ScoredGroup,
    Segment,
    TrainingBatch,
    Verdict,
    VersionId,
)

PROMPT = Prompt("p", (Message("user", "?"),), "task", "1")


def completion(token_ids: Sequence[int], logprobs: Sequence[float] | None = None) -> Completion:
    segments = (Segment(0, len(token_ids), VersionId(0, 0), "r"),)
    logprobs = logprobs or [-4.0] * len(token_ids)
    return Completion(tuple(token_ids), tuple(logprobs), "", "stop", segments)


def scored_group(
    prompt_token_ids: Sequence[int],
    completions: Sequence[Completion],
    rewards: Sequence[float | None],
    number: int = 0,
) -> ScoredGroup:
    """A reward of None is a faulted completion."""
    verdicts: list[Verdict] = [Faulted("lost") if r is None else Score(r) for r in rewards]
    group = Group(number, 0, PROMPT, tuple(prompt_token_ids), tuple(completions))
    return ScoredGroup(group, tuple(verdicts))


def random_batch(step: int, num_groups: int = 4, group_size: int = 3) -> TrainingBatch:
    """Lengths differ; the third group's rewards are all equal, the last has a fault in it."""
    dice = random.Random(step)

    def tokens(length: int) -> list[int]:
        return [dice.randrange(3, 96) for _ in range(length)]

    groups = []
    for number in range(num_groups):
        answers = [completion(tokens(dice.randrange(2, 12))) for _ in range(group_size)]
        rewards: list[float | None] = [float(i % 2) for i in range(group_size)]
        if number == 2:
            rewards = [0.3] * group_size
        if number == num_groups - 1:
            rewards[-1] = None
        groups.append(scored_group(tokens(dice.randrange(3, 9)), answers, rewards, number))
    return TrainingBatch(step, tuple(groups))


def proofs_for(batch: TrainingBatch, root: str) -> list[Proof]:
    """That every maker of its tokens held weights with `root`."""
    makers = sorted({maker for scored in batch.groups for maker in scored.group.makers})
    return [Proof(version, replica, root, 1, 1) for version, replica in makers]
