"""How tokens were spread over experts, in a few numbers whatever the number of experts.

Axes: L layers, E experts of each.
"""

from __future__ import annotations

import math

import torch


def load_metrics(loads_LE: torch.Tensor) -> dict[str, float]:
    """Metrics from counts of tokens, over the layers that have experts. Nothing where no token has passed.

    The entropy of a layer is that of its shares, -sum p log p, over log E.
    """
    loads_LE = loads_LE[loads_LE.any(dim=-1)].double()
    if not len(loads_LE):
        return {}
    totals_L = loads_LE.sum(dim=-1)
    num_experts = loads_LE.shape[-1]
    shares_LE = loads_LE / totals_L[:, None]
    busiest_L = shares_LE.amax(dim=-1) * num_experts
    entropies_L = torch.special.entr(shares_LE).sum(dim=-1) / math.log(num_experts)
    return {
        "trainer/experts/busiest/mean": busiest_L.mean().item(),
        "trainer/experts/busiest/max": busiest_L.max().item(),
        "trainer/experts/entropy/mean": entropies_L.mean().item(),
        "trainer/experts/entropy/min": entropies_L.min().item(),
        "trainer/experts/idle/share": (loads_LE == 0).double().mean().item(),
    }
