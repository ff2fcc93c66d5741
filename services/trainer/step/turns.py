"""Which turn of its episode each trained token is of, and what the environment gave for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from services.trainer.grpo.kinds import Turns
from trimaran.types import Completion


def turns_of(completions_B: Sequence[Completion], lengths_B: Sequence[int]) -> Turns | None:
    """None where no turn has a reward of its own. `lengths_B`: trained tokens."""
    if not any(turn.reward is not None for one in completions_B for turn in one.turns):
        return None
    rewards: list[float] = []
    completions: list[int] = []
    numbers: list[int] = []
    owners: list[torch.Tensor] = []
    for index, (completion, length) in enumerate(zip(completions_B, lengths_B, strict=True)):
        first, turns = len(rewards), completion.turns
        rewards += [float("nan") if turn.reward is None else turn.reward for turn in turns]
        rewards += [] if turns else [float("nan")]
        numbers += range(len(rewards) - first)
        completions += [index] * (len(rewards) - first)
        if length:
            owners.append(first + _numbers_of_tokens(completion))
    return Turns(
        rewards_R=torch.tensor(rewards, dtype=torch.float64),
        completions_R=torch.tensor(completions),
        numbers_R=torch.tensor(numbers),
        turns_M=torch.cat(owners) if owners else torch.zeros(0, dtype=torch.int64),
    )


def _numbers_of_tokens(completion: Completion) -> torch.Tensor:
    """The turn of each sampled token, sequence by sequence."""
    turns = completion.turns
    if not turns:
        return torch.zeros(completion.num_sampled, dtype=torch.int64)
    order = sorted(range(len(turns)), key=lambda number: turns[number].sequence)
    counts = torch.tensor([turns[number].num_sampled for number in order])
    return torch.tensor(order).repeat_interleave(counts)
