"""What each optimizer update of a step trains: groups, pieces of them, and their tensors."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import torch

from services.trainer.step.batch import PackedBatch, StepBatch, pack, packed_lengths
from services.trainer.step.chosen_experts import StepExperts
from services.trainer.step.packing import GroupPiece, MicroBatch, plan_micro_batches
from trimaran.config import RunConfig
from trimaran.types import Group


@dataclass(frozen=True, slots=True)
class Update:
    """One mini-batch on one data-parallel rank. `plan_updates` makes them."""

    step: StepBatch
    """By sequence, where the algorithm looks at each token alone."""
    groups: tuple[int, ...]
    """Places of its groups in the step's batch."""
    computed: tuple[tuple[int, ...], ...]
    """The completions of each group, among those of the step, that go through a forward pass."""
    micro_batches: tuple[MicroBatch, ...]
    """This rank's; without groups in which an input is not finite."""
    pieces: tuple[MicroBatch, ...]
    """The pieces of each data-parallel rank, from all its micro-batches."""
    imbalance: float
    """The imbalance of the ranks' work, 1 or more."""
    faults: tuple[str, ...]
    """Faults of the inputs. Every rank looked at all of them, and leaves the update out; its other groups may
    train in another epoch."""
    experts: StepExperts | None = None
    """For the routers to choose again."""

    def pack(self, device: torch.device) -> list[PackedBatch]:
        """The micro-batches as tensors: not kept, because a step may have many updates."""
        return [self.pack_pieces(pieces, device) for pieces in self.micro_batches]

    def pack_pieces(self, pieces: MicroBatch, device: torch.device) -> PackedBatch:
        return pack(self.step, [self.find(piece) for piece in pieces], device, self.experts)

    @property
    def num_trained(self) -> int:
        """Trained tokens that count in its loss, also those that are not computed."""
        return sum(
            self.step.lengths_B[index]
            for place in self.groups
            for index in self.step.members[place]
        )

    def find(self, piece: GroupPiece) -> tuple[int, tuple[int, ...]]:
        """The place of its group in the step's batch, and its completions among those of the step."""
        computed = self.computed[piece.place]
        return self.groups[piece.place], tuple(computed[index] for index in piece.completions)


def plan_updates(
    step: StepBatch,
    computed: Collection[int],
    faults: Mapping[int, str],
    config: RunConfig,
    number: int,
    data_rank: int,
    attention_cost: float,
    image_cost: Callable[[Group], float],
) -> list[Update]:
    """All updates of step `number`, epoch by epoch.

    `computed`: completions that go through a forward pass. `faults`: by place of the group. Costs: those of
    `learner.Policy`.
    """
    section = config.trainer
    of_images = [image_cost(scored.group) for scored in step.groups]
    updates: list[Update] = []
    for groups in _draw(len(step.groups), config, number):
        found = tuple(faults[place] for place in groups if place in faults)
        members = tuple(
            tuple(index for index in step.members[place] if index in computed)
            if place not in faults
            else ()
            for place in groups
        )
        plan = plan_micro_batches(
            [
                replace(packed_lengths(step, place, own), images=of_images[place])
                for place, own in zip(groups, members, strict=True)
            ],
            section.data_parallel,
            section.micro_batch_tokens,
            attention_cost,
        )
        mine = tuple(filter(None, plan.micro_batches[data_rank]))
        pieces = tuple(tuple(chain.from_iterable(rank)) for rank in plan.micro_batches)
        updates.append(Update(step, groups, members, mine, pieces, plan.imbalance, found))
    return updates


def computed_by(updates: Sequence[Update], data_rank: int) -> list[int]:
    """The prompts and completions that pass a data-parallel rank in any of the updates of a step, by the
    numbers of `chosen_experts.StepExperts`, in their order."""
    found = set[int]()
    for update in updates:
        for group, completions in map(update.find, update.pieces[data_rank]):
            found |= {group, *(len(update.step.groups) + index for index in completions)}
    return sorted(found)


def _draw(num_groups: int, config: RunConfig, number: int) -> Iterator[tuple[int, ...]]:
    """The groups of each update. The same on every rank, and when the step is made again."""
    algorithm = config.algorithm
    num = algorithm.updates_per_batch
    for epoch in range(algorithm.epochs):
        order = list(range(num_groups))
        if algorithm.shuffle:
            random.Random(f"{config.run.seed}/{number}/{epoch}").shuffle(order)
        bounds = [num_groups * index // num for index in range(num + 1)]
        yield from (tuple(order[start:stop]) for start, stop in pairwise(bounds))
