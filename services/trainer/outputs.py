"""What a forward pass of the policy answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """Of the M trained tokens of a micro-batch, at the sampling temperature.

    Example: TokenOutputs(logprobs_M, entropies_M=None)
    """

    logprobs_M: torch.Tensor
    """float32."""
    entropies_M: torch.Tensor | None = None
    """float32, nats: of the distribution that each token was drawn from, exact; only where asked."""
