"""What the model reads of a micro-batch.

Axes: N packed tokens, M trained tokens among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from services.trainer.step.chosen_experts import ChosenExperts
from services.trainer.step.packing import GroupLengths
from services.trainer.step.prompt_images import PromptImages


class PackedTokens(Protocol):
    """`services.trainer.step.batch.PackedBatch` has them, and what the loss needs beside them."""

    @property
    def token_ids_N(self) -> torch.Tensor: ...
    @property
    def groups(self) -> tuple[GroupLengths, ...]: ...
    @property
    def sources_M(self) -> torch.Tensor: ...
    @property
    def targets_M(self) -> torch.Tensor: ...
    @property
    def images(self) -> tuple[PromptImages, ...]: ...
    @property
    def experts(self) -> ChosenExperts | None: ...


@dataclass(frozen=True, slots=True)
class OneToken:
    """A micro-batch of which nothing is learnt: for a rank that must only send others' tokens through its experts."""

    token_ids_N: torch.Tensor
    groups: tuple[GroupLengths, ...]
    sources_M: torch.Tensor
    targets_M: torch.Tensor
    images: tuple[PromptImages, ...] = ()
    experts: None = None

    @staticmethod
    def on(device: torch.device) -> OneToken:
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        token = torch.zeros(1, dtype=torch.int64, device=device)
        return OneToken(token, (GroupLengths(1, (0,)),), nothing, nothing)
