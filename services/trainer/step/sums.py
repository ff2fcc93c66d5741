"""What the metrics of a step are made of: sums over tokens, micro-batches, updates and ranks.

*Trained* tokens are all that count in the loss. *Computed* are those among them that need a forward
pass, because their advantage is not 0 or because there is a KL or entropy term.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch


class Reduces(Protocol):
    def reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> None: ...


class TokenSums:
    """On the device; reading them waits for it.

    Example: sums = TokenSums(["loss", "tokens"], device); sums.add({"loss": loss, "tokens": 24})
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        """All ranks must give the same names in the same order."""
        self._places = {name: place for place, name in enumerate(names)}
        self._device = device
        self._sums = torch.zeros(len(names), dtype=torch.float32, device=device)
        self._importance_max = torch.zeros(1, dtype=torch.float32, device=device)
        self._finite = torch.ones((), dtype=torch.bool, device=device)

    def add(self, values: Mapping[str, torch.Tensor | float]) -> None:
        for name, value in values.items():
            self._sums[self._places[name]] += value

    def add_importance(self, importance_M: torch.Tensor) -> None:
        """For its greatest value."""
        if len(importance_M):
            self._importance_max.clamp_(min=importance_M.amax())

    def require_finite(self, *tensors: torch.Tensor | None) -> None:
        for tensor in tensors:
            if tensor is not None:
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
        return dict(
            zip(self._places, self._sums.tolist(), strict=True)
        ), self._importance_max.item()
