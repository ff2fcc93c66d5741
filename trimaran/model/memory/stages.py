"""How long the stages of a pipeline wait for each other, by the products with matrices that each computes.

A rank multiplies each packed token with so many parameters, of a model on T tensor- and X context-parallel
ranks, which share all but the tower:

    (layers x parameters of one + trained tokens x those of the head) / (T X) + image tokens x those of the tower

Tokens are shares of the packed ones. A tower that is frozen has no backward pass, and so a third of that.
An update of M micro-batches, with V stages a rank, takes at most

    sum of all ranks' times / V + (M - 1 / V) x the slowest one's

as 1F1B does for V = 1 (PipeDream-Flush, arXiv 2006.09503) and the interleaved schedule else (arXiv 2104.04473).
Attention between tokens, messages and the embedding are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimaran.config.parallel import ParallelLayout
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.trained import trained_tower

FORWARD = 1 / 3
"""The forward pass's share of a forward and a backward pass."""


def stage_costs(
    model: ModelSizes,
    layout: ParallelLayout,
    images: float,
    trained: float,
    freeze: tuple[str, ...] = (),
) -> tuple[float, ...]:
    """Parameters with which a rank multiplies a packed token, by pipeline rank. `images`, `trained`: how
    many of these tokens stand for images, and have a log-probability."""
    facts, ranks = model.facts, layout.tensor * layout.context
    places = map(layout.place, range(0, layout.num_ranks, ranks * layout.data))
    costs = [
        sum(map(facts.used_parameters, one.layers(facts.num_layers))) / ranks for one in places
    ]
    costs[-1] += trained * facts.vocab_size * facts.hidden_size / ranks
    if tower := facts.vision:
        passes = tower_passes(model, freeze)
        costs[0] += passes * images * tower.merged * tower.depth * tower.block_parameters
    return tuple(costs)


def tower_passes(model: ModelSizes, freeze: tuple[str, ...]) -> float:
    """How much of an update the vision tower computes; 1 is a forward and a backward pass."""
    return 1 if trained_tower(model, freeze) else FORWARD


def update_time(costs: Sequence[float], micro_batches: int, virtual_stages: int = 1) -> float:
    """In the unit of `costs`."""
    return sum(costs) / virtual_stages + (micro_batches - 1 / virtual_stages) * max(costs)


def waits(costs: Sequence[float], micro_batches: int, virtual_stages: int = 1) -> tuple[float, ...]:
    """The part of an update in which each pipeline rank has nothing to compute.

    Example: waits((1.0, 1.0), micro_batches=9) == (0.1, 0.1)
    """
    whole = update_time(costs, micro_batches, virtual_stages)
    return tuple(1 - micro_batches * cost / whole for cost in costs)
