"""A shard that the distributed optimizer has saved in parts: a file of each rank that had one.

`main.NAME@START` of one file is what stands in the flat parameter from element START on. The ranks of a
stage that have the same slice of the dense parameters share their optimizer, and so do those that have the
same experts: these are other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import torch

from services.trainer.checkpoints.checkpoint import RankLayout
from services.trainer.checkpoints.saved import SavedTensors
from services.trainer.checkpoints.tensor_file import Spec
from services.trainer.megatron.parameters.adapter_rules import is_adapter
from services.trainer.megatron.parameters.mapping import EXPERT
from services.trainer.megatron.parameters.rules import Rules
from services.trainer.megatron.parameters.shards import shard_shape
from trimaran.config.parallel import RankPlace
from trimaran.errors import InputError
from weights.memory.host_memory import DTYPES

OpenFile = Callable[[int], SavedTensors]
"""From the number of a checkpoint's file."""


def whole_shard(
    rules: Rules, saved: RankLayout, place: RankPlace, open_file: OpenFile
) -> SavedTensors:
    """What the ranks with the shard of `place`, of the saved layout, have saved together. `rules`: those of
    `adapter_rules.trained_rules`."""
    if not saved.distributed_optimizer:
        return open_file(place.shard)
    stage = [
        one
        for one in map(saved.ranks.place, range(saved.ranks.num_ranks))
        if one.pipeline == place.pipeline
    ]
    shares = [one for one in stage if one.tensor == place.tensor or _has_experts_of(one, place)]
    return Joined(rules, place, {one: open_file(one.rank) for one in shares})


def refuse_adapters(names: Iterable[str], rules: Rules) -> None:
    """Raises InputError where `trainer.lora` has saved one that no rule knows. `names`: of a shard's tensors."""
    parameters = (name.partition(".")[2].partition("@")[0] for name in names)
    if any(is_adapter(one) and one not in rules for one in parameters):
        raise InputError(
            "the checkpoint holds adapters of trainer.lora, which are read only with the trainer.lora that"
            " saved them; give that, or take the exported model, which has them merged"
        )


class _Part(NamedTuple):
    name: str
    start: int
    key: str
    file: SavedTensors


class Joined(SavedTensors):
    """Example: Joined(rules, place, {one: first, other: second})["main.output_layer.weight"]"""

    def __init__(
        self, rules: Rules, place: RankPlace, files: Mapping[RankPlace, SavedTensors]
    ) -> None:
        """`place`: of a rank that has the shard. `files`: of all ranks of its stage that have its slice of
        the dense parameters, or its experts."""
        parts = sorted(_parts(place, files), key=lambda part: part[:2])
        refuse_adapters((part.name for part in parts), rules)
        self._parts = {name: list(found) for name, found in groupby(parts, lambda part: part.name)}
        self._specs: dict[str, Spec] = {}
        for name, (first, *_) in self._parts.items():
            shape = shard_shape(rules[name.partition(".")[2]], place)
            self._specs[name] = Spec(name, first.file.specs[first.key].dtype, shape)

    @property
    def specs(self) -> Mapping[str, Spec]:
        return self._specs

    def __getitem__(self, name: str) -> torch.Tensor:
        """Raises InputError for a file that is damaged or lacks a part."""
        spec = self._specs[name]
        whole = torch.empty(spec.shape, dtype=DTYPES[spec.dtype])
        flat, filled = whole.view(-1), 0
        for part in self._parts[name]:
            if part.start != filled:
                break
            tensor = part.file[part.key]
            if len(tensor) > len(flat) - filled:
                raise InputError(
                    f"the checkpoint's {name} is larger than {spec.shape}, which this run needs"
                )
            flat[filled : filled + len(tensor)] = tensor
            filled += len(tensor)
        if filled != len(flat):
            raise InputError(f"the checkpoint lacks a part of {name}, from element {filled} on")
        return whole


def _parts(place: RankPlace, files: Mapping[RankPlace, SavedTensors]) -> Iterator[_Part]:
    for one, file in files.items():
        for key in file:
            name, _, start = key.rpartition("@")
            of_expert = EXPERT.search(name)
            if _has_experts_of(one, place) if of_expert else one.tensor == place.tensor:
                yield _Part(name, int(start), key, file)


def _has_experts_of(one: RankPlace, other: RankPlace) -> bool:
    """The same slices of the same experts."""
    return (one.expert, one.expert_tensor) == (other.expert, other.expert_tensor)
