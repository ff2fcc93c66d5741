"""What a policy says of the trained tokens of one micro-batch.

Axis: M trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """Example: TokenOutputs(logprobs_M=torch.tensor([-0.1, -2.3]))"""

    logprobs_M: torch.Tensor
    """float32, at the sampling temperature."""
    entropies_M: torch.Tensor | None = None
    """float32, of the distribution that each token was drawn from, exact, in nats; where asked for."""


TokenLoss = Callable[[int, TokenOutputs], torch.Tensor]
"""From the number of the micro-batch and its outputs to the scalar that is added to the whole loss."""
