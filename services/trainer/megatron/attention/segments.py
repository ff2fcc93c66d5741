"""How the packed tokens of groups are attended to, group by group.

Packed, a group is `prompt | completion | completion | …`. Its prompt either
serves all completions where it stands, or is laid out with each of them as a
whole sequence, whichever costs less.

Axes: N packed tokens, U tokens in sequences of their own (shared prompts, and
all tokens of the other groups), A tokens of completions that share a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.trainer.step.packing import GroupLengths
from trimaran.model.memory.work import shares_prompt


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """A group's tokens among the U tokens, int64. A shared prompt's has no completions."""

    prompt: torch.Tensor
    completions: tuple[torch.Tensor, ...] = ()

    @property
    def sequences(self) -> tuple[torch.Tensor, ...]:
        """The prompt with each completion, or alone."""
        return tuple(torch.cat([self.prompt, one]) for one in self.completions) or (self.prompt,)


@dataclass(frozen=True, slots=True)
class SharingGroup:
    """A group whose completions share their prompt, int64."""

    prompt: torch.Tensor
    """Among the U tokens."""
    completions: tuple[torch.Tensor, ...]
    """Among the A tokens, one after the other."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Neighbouring packed tokens of one kind."""

    sizes: tuple[int, ...]
    shares: tuple[bool, ...]
    """Whether they are A tokens."""

    def split(self, x_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[N, ...] -> [U, ...] and [A, ...]; None where A is 0."""
        if not any(self.shares):
            return x_N, None
        parts = list(zip(x_N.split(self.sizes), self.shares, strict=True))
        x_U = torch.cat([part for part, shares in parts if not shares])
        return x_U, torch.cat([part for part, shares in parts if shares])

    def join(self, x_U: torch.Tensor, x_A: torch.Tensor | None) -> torch.Tensor:
        """The way back."""
        if x_A is None:
            return x_U
        kinds = [iter(self._split_kind(x_U, False)), iter(self._split_kind(x_A, True))]
        return torch.cat([next(kinds[shares]) for shares in self.shares])

    def _split_kind(self, x: torch.Tensor, kind: bool) -> tuple[torch.Tensor, ...]:
        sizes = [
            size for size, shares in zip(self.sizes, self.shares, strict=True) if shares == kind
        ]
        return x.split(sizes)


def assign(
    groups: Sequence[GroupLengths], pair_cost: float
) -> tuple[Segments, list[SequenceGroup], list[SharingGroup]]:
    """`pair_cost`: as in `shares_prompt`. A completion without an input token has no place."""
    in_sequences, sharing = [], []
    segments: list[tuple[int, bool]] = []
    num_U = num_A = 0
    for group in groups:
        tokens = sum(group.completions)
        prompt = torch.arange(num_U, num_U + group.prompt)
        num_U += group.prompt
        share = shares_prompt(group.prompt, group.completions, pair_cost)
        first = num_A if share else num_U
        completions = torch.arange(first, first + tokens).split(list(group.completions))
        inputs = tuple(one for one in completions if len(one))
        segments += [(group.prompt, False), (tokens, share)]
        if share:
            num_A += tokens
            in_sequences.append(SequenceGroup(prompt))
            sharing.append(SharingGroup(prompt, inputs))
        else:
            num_U += tokens
            in_sequences.append(SequenceGroup(prompt, inputs))
    sizes, shares = zip(*segments, strict=True)
    return Segments(sizes, shares), in_sequences, sharing


def positions(groups: Sequence[GroupLengths]) -> torch.Tensor:
    """The position of each packed token in its sequence, int64 [N]."""
    parts: list[torch.Tensor] = []
    for group in groups:
        parts.append(torch.arange(group.prompt))
        parts += [torch.arange(group.prompt, group.prompt + one) for one in group.completions]
    return torch.cat(parts)
