"""Where the tokens of groups stand in a micro-batch: `prompt | completion | completion | …`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from services.trainer.packing import GroupLengths


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """Its packed tokens, int64. Completions without an input token are left out."""

    prompt: torch.Tensor
    completions: tuple[torch.Tensor, ...]

    @property
    def sequences(self) -> tuple[torch.Tensor, ...]:
        """The prompt with each of its completions, or alone if it has none."""
        return tuple(torch.cat([self.prompt, one]) for one in self.completions) or (self.prompt,)


def pack_groups(groups: Sequence[GroupLengths]) -> list[PackedGroup]:
    packed: list[PackedGroup] = []
    start = 0
    for group in groups:
        tokens = torch.arange(start, start + group.prompt + sum(group.completions))
        prompt, *completions = tokens.split([group.prompt, *group.completions])
        packed.append(PackedGroup(prompt, tuple(one for one in completions if len(one))))
        start += len(tokens)
    return packed


def positions(groups: Sequence[GroupLengths]) -> torch.Tensor:
    """Of each packed token in its sequence, int64 [N]."""
    parts: list[torch.Tensor] = []
    for group in groups:
        parts.append(torch.arange(group.prompt))
        parts += [torch.arange(group.prompt, group.prompt + one) for one in group.completions]
    return torch.cat(parts)
