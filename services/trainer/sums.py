"""What the metrics of a step are made of: sums over tokens, micro-batches, updates and ranks.

*Trained* tokens are all that count in the loss. *Computed* are those among them that need a forward
pass, because their advantage is not 0 or because there is a KL term.
"""

from __future__ import annotations

from typing import Protocol

import torch

NAMES = ("loss", "tokens", "packed", "clipped", "importance", "divergence", "gap", "logprob")


class Reduces(Protocol):
    def reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> None: ...


class TokenSums:
    """On the device; reading them waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(NAMES), dtype=torch.float32, device=device)
        self._importance_max = torch.zeros(1, dtype=torch.float32, device=device)
        self._finite = torch.ones((), dtype=torch.bool, device=device)

    def add(self, importance_max: torch.Tensor, **values: torch.Tensor | float) -> None:
        for name, value in values.items():
            self._sums[NAMES.index(name)] += value
        self._importance_max.clamp_(min=importance_max)

    def require_finite(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            self._finite &= tensor.isfinite().all()

    @property
    def finite(self) -> bool:
        """Whether all numbers seen so far were."""
        return bool(self._finite & self._sums.isfinite().all())

    def merge(self, other: TokenSums) -> None:
        self._sums += other._sums
        self._importance_max = torch.maximum(self._importance_max, other._importance_max)

    def reduced(self, ranks: Reduces) -> tuple[dict[str, float], float]:
        """By name, over all ranks, and the largest importance weight. All ranks must call."""
        ranks.reduce(self._sums, self._importance_max)
        return dict(zip(NAMES, self._sums.tolist(), strict=True)), self._importance_max.item()
