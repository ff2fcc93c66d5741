"""How the trainer's ranks share the model and the batch: sizes, and each rank's place among them.

Pure arithmetic in one file, so that no other knows in which order ranks count:

    rank = tensor + T x (context + C x (data + D x pipeline))

T, C, D are the sizes. That is megatron-core's own order "tp-cp-ep-dp-pp" (`parallel_state.RankGenerator`):
what speaks most stands closest together. Experts have an order of their own, in which the T x C x D ranks of
a stage count through their slices and shares again and again:

    rank of the stage = slice + S x (share + E x copy)

E shares of the experts, of each of which S ranks hold a slice of every expert.

A rank's place says nothing about its device: each process sees its own device only, as the first one
(trimaran/run/placement.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Example: ParallelLayout(tensor=2, data=2).place(3) has tensor rank 1 and data rank 1"""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    """Shares of the experts. Times `expert_tensor` it divides tensor x context x data."""
    expert_tensor: int = 1
    """Slices of each expert."""
    layers: tuple[int, ...] = ()
    """Layers of each stage of the pipeline; empty where all have equally many."""

    @property
    def num_ranks(self) -> int:
        return self.tensor * self.context * self.data * self.pipeline

    @property
    def num_shards(self) -> int:
        """Ranks with different weights. All of them together have the whole model, each expert and each
        slice of the rest at least once."""
        return self.shards_of_stage * self.pipeline

    @property
    def shards_of_stage(self) -> int:
        """Pairs of a slice of the attention and a part of the experts that a rank can have."""
        return math.lcm(self.tensor, self.expert_parts)

    @property
    def expert_parts(self) -> int:
        """Ranks that have all experts of a layer together, once."""
        return self.expert * self.expert_tensor

    @property
    def senders(self) -> tuple[RankPlace, ...]:
        """One rank for each shard, in the order of shards, which is also that of ranks. Rank 0 is the
        first."""
        places = (self.place(rank) for rank in range(self.num_ranks))
        return tuple(place for place in places if place.sends)

    def stages(self, count: int, virtual_stages: int = 1) -> tuple[range, ...]:
        """The layers of each stage, of `count` in all, in the order in which tokens pass them. Stages go round the
        pipeline's ranks: stage s is on rank s modulo `pipeline`.

        Example: ParallelLayout(pipeline=2, layers=(0, 28)).stages(28) == (range(0), range(28))
        """
        number = self.pipeline * virtual_stages
        sizes = self.layers or (count // number,) * number
        return tuple(range(*ends) for ends in pairwise(accumulate(sizes, initial=0)))

    def place(self, rank: int) -> RankPlace:
        """Raises IndexError for a rank that there is not."""
        if not 0 <= rank < self.num_ranks:
            raise IndexError(f"rank {rank} of {self.num_ranks}")
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        pipeline, data = divmod(rest, self.data)
        return RankPlace(self, rank, tensor, pipeline, data, context)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank's numbers, each below the size of the same name. `ParallelLayout.place` makes it."""

    layout: ParallelLayout
    rank: int
    tensor: int
    pipeline: int
    """The stage."""
    data: int
    context: int

    @property
    def expert(self) -> int:
        return self._in_stage // self.layout.expert_tensor % self.layout.expert

    @property
    def expert_tensor(self) -> int:
        return self._in_stage % self.layout.expert_tensor

    @property
    def sends(self) -> bool:
        """Is the first rank that holds its shard of the model: it saves it, and takes part when
        weights are sent or exported."""
        return self._in_stage < self.layout.shards_of_stage

    @property
    def sends_experts(self) -> bool:
        """Is the first with its part of the experts."""
        return self._in_stage < self.layout.expert_parts

    @property
    def sends_dense(self) -> bool:
        """Is the first with its slice of all that is no expert's."""
        return self._in_stage < self.layout.tensor

    @property
    def shard(self) -> int:
        """The shard of the model, below `num_shards`; equal on ranks that hold the same weights."""
        size = self.layout.shards_of_stage
        return self._in_stage % size + size * self.pipeline

    @property
    def is_last_stage(self) -> bool:
        return self.pipeline == self.layout.pipeline - 1

    def layers(self, count: int, virtual_stages: int = 1) -> tuple[int, ...]:
        """The layers of the rank, of `count` in all, in the order in which its stages have them."""
        stages = self.layout.stages(count, virtual_stages)
        return tuple(chain.from_iterable(stages[self.pipeline :: self.layout.pipeline]))

    @property
    def _in_stage(self) -> int:
        """Its number among the ranks of its stage."""
        sizes = self.layout
        return self.tensor + sizes.tensor * (self.context + sizes.context * self.data)
