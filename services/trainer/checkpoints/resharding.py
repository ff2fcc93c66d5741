"""A checkpoint of one layout, read as a shard of another.

A rank reads only the tensors of the old shards in which some of its rows are, and of these copies its
own rows. At most one parameter is on the host at a time, besides pages of mapped files, which the system
takes back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from services.trainer.checkpoints.checkpoint import RankLayout
from services.trainer.checkpoints.joined import OpenFile, refuse_adapters, whole_shard
from services.trainer.checkpoints.saved import SavedTensors
from services.trainer.checkpoints.tensor_file import Spec
from services.trainer.megatron.parameters.adapter_rules import trained_rules
from services.trainer.megatron.parameters.shards import (
    find_runs,
    held_names,
    holds,
    original,
    row_numbers,
    shard_shape,
)
from trimaran.config import LoraSection
from trimaran.config.parallel import RankPlace
from trimaran.errors import InputError, InternalError
from trimaran.model.folder import ModelFacts
from weights.memory.host_memory import DTYPES

KINDS = ("main", "exp_avg", "exp_avg_sq", "compensation")
"""What is saved of a parameter: its weight, and what an optimizer may keep of it."""


class Resharded(SavedTensors):
    """What a rank at another place, in another layout, would have saved.

    Example: Resharded(facts, saved, Layout().place(0), open_file)["main.output_layer.weight"]
    """

    def __init__(
        self,
        facts: ModelFacts,
        saved: RankLayout,
        place: RankPlace,
        open_file: OpenFile,
        virtual_stages: int = 1,
        lora: LoraSection | None = None,
    ) -> None:
        """`saved`: the old layout. `place`, `virtual_stages`: in the new one. `lora`: of both runs."""
        self._rules, self._place = trained_rules(facts, lora), place
        self._facts, self._saved, self._open_file = facts, saved, open_file
        self._opened: dict[int, SavedTensors] = {}
        own = held_names(self._rules, facts, place, virtual_stages)
        needed = {original(name, self._rules) for name in own}
        # In the order of shards: what several old ranks hold is taken from the first of them.
        self._old: list[tuple[RankPlace, set[str]]] = []
        for one in saved.ranks.senders:
            if held := {name for name in needed if self._was_held(one, name)}:
                self._old.append((one, held))
        self._specs: dict[str, Spec] = {}
        for name in own:
            shape = shard_shape(self._rules[name], place)
            for kind, dtype in self._kinds(original(name, self._rules)).items():
                self._specs[f"{kind}.{name}"] = Spec(f"{kind}.{name}", dtype, shape)

    @property
    def specs(self) -> Mapping[str, Spec]:
        return self._specs

    def __getitem__(self, name: str) -> torch.Tensor:
        """Raises InputError for a shard that is damaged or lacks the tensor."""
        kind, _, parameter = name.partition(".")
        spec, rule = self._specs[name], self._rules[parameter]
        source = original(parameter, self._rules)
        whole = torch.zeros(spec.shape, dtype=DTYPES[spec.dtype])  # rows of padding stay 0
        missing = row_numbers(rule, self._place)
        for place, names in self._old:
            if source not in names or not missing.any():
                continue
            runs = find_runs(missing, row_numbers(rule, place))
            tensor = self._tensor(place, f"{kind}.{source}") if runs else whole
            for target, first, length in runs:
                rows = tensor.narrow(rule.axis, first, length)
                whole.narrow(rule.axis, target, length).copy_(rows)
                missing[target : target + length] = 0
        if missing.any():
            raise InternalError(f"{name}: the shards of the checkpoint lack a part of it")
        return whole

    def _kinds(self, name: str) -> dict[str, str]:
        """What was saved of a parameter, its weight and what the optimizer keeps, each with its dtype;
        nothing of one that was frozen."""
        place = next(place for place, names in self._old if name in names)
        specs = self._shard(place).specs
        return {kind: specs[key].dtype for kind in KINDS if (key := f"{kind}.{name}") in specs}

    def _was_held(self, place: RankPlace, name: str) -> bool:
        return holds(place, name, self._rules[name], self._facts, self._saved.virtual_stages)

    def _tensor(self, place: RankPlace, name: str) -> torch.Tensor:
        tensors = self._shard(place)
        if name not in tensors:
            raise InputError(f"shard {place.shard} of the checkpoint lacks {name}")
        found = tensors.specs[name].shape
        if found != (wanted := shard_shape(self._rules[name.partition(".")[2]], place)):
            raise InputError(
                f"the checkpoint's {name} has shape {found}; this run's model needs {wanted} of it"
            )
        return tensors[name]

    def _shard(self, place: RankPlace) -> SavedTensors:
        """Opened once, when it is first needed."""
        if place.shard not in self._opened:
            shard = whole_shard(self._rules, self._saved, place, self._open_file)
            refuse_adapters(shard, self._rules)
            self._opened[place.shard] = shard
        return self._opened[place.shard]
