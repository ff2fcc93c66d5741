"""Limits of what is exponentiated.

Source: verl's policy losses (verl/trainer/ppo/core_algos.py) limit log-ratios so, and MindSpeed-RL's
`compute_kl_penalty` (mindspeed_rl/utils/compute.py) the exponent of its KL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MAX_EXPONENT = 20.0
"""Nats, of either sign: exp(20) is 4.9e8, exp(-20) is 2.1e-9."""


def limited(exponents: torch.Tensor) -> torch.Tensor:
    """Each moved into -20..20; its gradient is 0 where it was moved. NaN stays NaN."""
    return exponents.clamp(-MAX_EXPONENT, MAX_EXPONENT)


def limited_exp(exponents: torch.Tensor) -> torch.Tensor:
    """exp of each exponent, moved into -20..20 first; its gradient is 0 where it was moved."""
    return limited(exponents).exp()
