"""Group-normalised advantages. Axis: G completions of one group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

STD_EPSILON = 1e-4
"""Keeps the quotient finite when the rewards of a group hardly differ."""


def has_signal(rewards_G: Sequence[float], scored_G: Sequence[bool]) -> bool:
    """Whether the scored rewards differ at all. Where they do not, every advantage is 0."""
    return len({reward for reward, scored in zip(rewards_G, scored_G, strict=True) if scored}) > 1


class Advantage(Protocol):
    """What `algorithm.advantage` names: a pure function, called once a group on every rank.

    Example:
        def centred(rewards_G, scored_G, normalize_std):
            rewards = torch.tensor(rewards_G, dtype=torch.float64)
            return rewards - rewards[torch.tensor(scored_G)].mean()
    """

    def __call__(
        self, rewards_G: Sequence[float], scored_G: Sequence[bool], normalize_std: bool, /
    ) -> torch.Tensor:
        """One number a completion, float64 [G]. Where `scored_G` is false the completion is faulted:
        its reward is 0 and means nothing, and its advantage is not used.

        `normalize_std` is the configuration's. A completion whose advantage is exactly 0 goes
        through no forward pass, unless there is a KL term.
        """
        ...


def group_advantages(
    rewards_G: Sequence[float], scored_G: Sequence[bool], normalize_std: bool
) -> torch.Tensor:
    """(r - mean) / (std + 1e-4) over the scored completions, float64 [G]; 0 where faulted.

    Source: DeepSeekMath (arXiv 2402.03300), section 4.1, with the sample standard deviation.
    Without `normalize_std` only the mean is taken off (Dr. GRPO, arXiv 2503.20783).
    Example: group_advantages([1.0, 0.0, 9.0], [True, True, False], False) is [0.5, -0.5, 0.0]
    """
    rewards = torch.tensor(rewards_G, dtype=torch.float64)
    scored = torch.tensor(scored_G, dtype=torch.bool)
    if not has_signal(rewards_G, scored_G):
        # Exactly 0: the mean of equal floats is not always the float itself.
        return torch.zeros_like(rewards)
    known = rewards[scored]
    advantages = rewards - known.mean()
    if normalize_std:
        advantages = advantages / (known.std() + STD_EPSILON)
    return torch.where(scored, advantages, 0.0)
