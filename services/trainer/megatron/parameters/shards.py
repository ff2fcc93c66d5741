"""Which rows of which Hugging Face tensors a shard of any layout holds, and how one layout's shards are
put together from those of another.

No process group and no model is needed: the rules of the family say it. What a rule does with a tensor
it also does with the numbers of the tensor's rows, so one table of rules serves loading, export and the
change of a layout:

    numbers of the new shard's rows, looked up among those of an old one ─▶ runs of rows to copy

"Rows" are columns where a rule splits by column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from services.trainer.megatron.parameters.family_rules import TOWER
from services.trainer.megatron.parameters.mapping import EXPERT, LAYER
from services.trainer.megatron.parameters.rules import MappingRule, Rules, Shape
from trimaran.config.parallel import RankPlace
from trimaran.model.folder import ModelFacts


def held_names(
    rules: Rules, facts: ModelFacts, place: RankPlace, virtual_stages: int = 1
) -> list[str]:
    """The parameters of the rank at `place`, as `PackedGPT.named_weights` names them."""
    return [name for name, rule in rules.items() if holds(place, name, rule, facts, virtual_stages)]


def holds(
    place: RankPlace, name: str, rule: MappingRule, facts: ModelFacts, virtual_stages: int = 1
) -> bool:
    """Whether the rank at `place` has the parameter `name`, or a part of it."""
    layout = place.layout
    if rule.is_copy and layout.pipeline == 1:
        return False  # one parameter is both
    if expert := EXPERT.search(name):
        share = facts.num_experts // layout.expert
        if int(expert[1]) // share != place.expert:
            return False
    if layer := LAYER.match(name):
        return int(layer[2]) in place.layers(facts.num_layers, virtual_stages)
    is_first = name.startswith(("embedding.", TOWER))
    return place.pipeline == 0 if is_first else place.is_last_stage


def row_numbers(rule: MappingRule, place: RankPlace) -> torch.Tensor:
    """int64, of each row of the rank's parameter: its number among the rows of the rule's tensors, one
    tensor after the other, from 1 on; 0 for padding. An element of a stack, which is never split, has its own."""
    if rule.own_shape:
        return torch.arange(1, rule.own_shape[0] + 1)
    numbers: list[torch.Tensor] = []
    first = 1
    for shape in rule.shapes:
        length = shape[rule.axis]
        own = torch.arange(first, first + length)
        numbers.append(own[None] if rule.axis else own)
        first += length
    return rule.shard(numbers, *rule.at(place)).flatten()


def shard_shape(rule: MappingRule, place: RankPlace) -> Shape:
    """The shape of the rank's parameter."""
    if rule.own_shape:
        return rule.own_shape
    shape, axis = rule.shapes[0], rule.axis
    return (*shape[:axis], len(row_numbers(rule, place)), *shape[axis + 1 :])


class RowSpan(NamedTuple):
    """Rows `source`, `source` + 1, … of an old parameter are the new one's `target`, `target` + 1, …

    Example: RowSpan(target=0, source=288, length=288)
    """

    target: int
    source: int
    length: int


def find_runs(wanted: torch.Tensor, held: torch.Tensor) -> Sequence[RowSpan]:
    """What of the rows with the numbers `wanted` stands among those with the numbers `held`."""
    places = torch.full((int(max(wanted.max(), held.max())) + 1,), -1)
    places[held] = torch.arange(len(held))
    places[0] = -1  # padding is copied from nowhere
    sources = places[wanted]
    targets = (sources >= 0).nonzero().flatten()
    return list(_joined(targets, sources[targets]))


def _joined(targets: torch.Tensor, sources: torch.Tensor) -> Iterator[RowSpan]:
    """Rows that follow each other on both sides are one run."""
    if not len(targets):
        return
    breaks = ((targets.diff() != 1) | (sources.diff() != 1)).nonzero().flatten() + 1
    for rows, found in zip(targets.tensor_split(breaks), sources.tensor_split(breaks), strict=True):
        yield RowSpan(int(rows[0]), int(found[0]), len(rows))


def original(name: str, rules: Rules) -> str:
    """The parameter of which `name` is a copy on another stage; itself where it is none. Layouts of one
    stage have the original alone, and both change alike."""
    rule = rules[name]
    if not rule.is_copy:
        return name
    return next(one for one, other in rules.items() if other.names == rule.names and one != name)
