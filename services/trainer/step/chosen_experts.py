"""The experts that the engine chose, for the packed tokens of a micro-batch. On the host, until a
micro-batch is computed.

Axes: T tokens of a prompt, or that a pass reads of a completion, N packed tokens, X bytes of a token, L layers, K experts of
a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from services.trainer.step.sequences import experts_of, num_read, sequences_of, total_read
from trimaran.errors import InputError
from trimaran.model.folder import ModelFacts
from trimaran.types import Completion, ScoredGroup

UNKNOWN = -1
"""Instead of an expert's number."""


def check_experts(groups: Iterable[ScoredGroup], facts: ModelFacts) -> None:
    """Raises InputError where choices are not of this model, or not of as many tokens as were read."""
    width = facts.num_layers * facts.choice_bytes
    for scored in groups:
        group = scored.group
        parts = [(group.prompt_experts, len(group.prompt_token_ids), "the prompt")]
        for number, completion in enumerate(group.completions_G):
            parts += [
                (one.experts, num_read(one), f"completion {number}")
                for one in sequences_of(completion)
            ]
        for data, tokens, what in parts:
            if data and len(data) != tokens * width:
                raise InputError(
                    f"group {group.number}: {what} has {len(data)} bytes of chosen experts; {tokens} tokens"
                    f" of a model of {facts.num_layers} layers and {facts.experts_per_token} of"
                    f" {facts.num_experts} experts a token have {tokens * width}"
                )


@dataclass(frozen=True, slots=True)
class StepExperts:
    """Those of a step's prompts and completions that a rank computes, in its own layers.

    Example: StepExperts(num_prompts=64, data=data).of_completion(3)
    """

    num_prompts: int
    data: Mapping[int, Any]
    """uint8 [T, X] by number: prompts by the place of their group, then the completions of the step. What
    the engine did not report is not in it."""

    @classmethod
    def reported(
        cls, groups: Sequence[ScoredGroup], completions: Sequence[Completion]
    ) -> StepExperts:
        """All that the engine reported of a step, in all layers of the model."""
        texts = [(one.group.prompt_experts, len(one.group.prompt_token_ids)) for one in groups]
        texts += [(experts_of(one), total_read(one)) for one in completions]
        data = {
            number: np.frombuffer(chosen, np.uint8).reshape(count, -1)
            for number, (chosen, count) in enumerate(texts)
            if chosen
        }
        return cls(len(groups), data)

    def of_prompt(self, group: int) -> Any | None:
        return self.data.get(group)

    def of_completion(self, index: int) -> Any | None:
        return self.data.get(self.num_prompts + index)


@dataclass(frozen=True, slots=True)
class ChosenExperts:
    """Example: join_experts([(chosen_TX, 3), (None, 5)]).numbers(facts) is [8, L, K]"""

    data_NX: torch.Tensor
    """uint8, as in `types.Completion.experts`, of this rank's layers; anything where they are not known."""
    is_known_N: torch.Tensor
    """bool."""

    def numbers(self, facts: ModelFacts) -> torch.Tensor:
        """int16 [N, L, K] of this rank's layers."""
        is_wide = facts.choice_bytes > facts.experts_per_token
        numbers = self.data_NX.view(torch.int16) if is_wide else self.data_NX.to(torch.int16)
        numbers = numbers.unflatten(1, (-1, facts.experts_per_token))
        return numbers.masked_fill(~self.is_known_N[:, None, None], UNKNOWN)

    def padded(self, count: int) -> ChosenExperts:
        """With so many more tokens, of which they are not known."""
        data = F.pad(self.data_NX, (0, 0, 0, count))
        return ChosenExperts(data, F.pad(self.is_known_N, (0, count)))


def join_experts(parts: Sequence[tuple[Any | None, int]]) -> ChosenExperts | None:
    """Joins those of prompts and completions: uint8 [T, X], or None where they are not known, and how many packed
    tokens. None where they are known of no token."""
    width = next((data.shape[1] for data, _ in parts if data is not None), 0)
    if not width:
        return None
    data_NX = np.concatenate(
        [np.zeros((count, width), np.uint8) if data is None else data for data, count in parts]
    )
    is_known_N = np.repeat([data is not None for data, _ in parts], [count for _, count in parts])
    return ChosenExperts(torch.from_numpy(data_NX), torch.from_numpy(is_known_N))
