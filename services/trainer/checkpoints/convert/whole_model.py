"""The parameters of a whole model, from whatever files, and the Hugging Face tensors that they make.

Sources map "main.NAME" to the parameter that the only rank of a run has, in float32. One parameter is on the
host at a time, besides pages of mapped files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from services.trainer.checkpoints.saved import SavedTensors
from services.trainer.checkpoints.tensor_file import Spec
from services.trainer.megatron.parameters.family_rules import family_rules
from services.trainer.megatron.parameters.mapping import cut_shard, num_sources, tensor_specs
from services.trainer.megatron.parameters.shards import held_names, shard_shape
from trimaran.config.parallel import RankPlace
from trimaran.model.folder import ModelFacts
from weights.memory.host_memory import DTYPES
from weights.version.digest import digest_value
from weights.version.grid import cut_tensors
from weights.version.manifest import compute_root, list_blocks

Tensors = Mapping[str, torch.Tensor]
Parameters = Iterable[tuple[str, torch.Tensor]]
"""By megatron-core's names."""


def parameters(
    facts: ModelFacts, saved: Tensors, frozen: Tensors
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each once. `frozen`: for what was not saved."""
    for name, rule in family_rules(facts).items():
        if not rule.is_copy:
            main = f"main.{name}"
            yield name, saved[main] if main in saved else frozen[main]


class Version:
    """The Hugging Face tensors of a model, one by one, and in the end their weight root."""

    def __init__(self, facts: ModelFacts, dtype: torch.dtype) -> None:
        self._facts = facts
        infos = cut_tensors(tensor_specs(facts, dtype), facts)
        self._infos = {info.name: info for info in infos}

    @property
    def specs(self) -> list[Spec]:
        return [Spec(info.name, info.dtype, info.shape) for info in self._infos.values()]

    def tensors(self, whole: Parameters) -> Iterator[tuple[str, torch.Tensor]]:
        """Out of all parameters of the model."""
        rules, begun = family_rules(self._facts), dict[str, torch.Tensor]()
        missing = num_sources(rules)
        for name, parameter in whole:
            rule = rules[name]
            for hf_name, share in zip(rule.names, rule.shares(parameter, 0, 1), strict=True):
                tensor = share.tensor.to(DTYPES[self._infos[hf_name].dtype])
                if missing[hf_name] > 1 or hf_name in begun:  # one expert of a stack
                    if hf_name not in begun:
                        begun[hf_name] = self._empty(hf_name)
                    tensor = begun[hf_name]
                    tensor[share.start : share.stop] = share.tensor
                missing[hf_name] -= 1
                if not missing[hf_name]:
                    begun.pop(hf_name, None)
                    self._digest(hf_name, tensor)
                    yield hf_name, tensor

    def _empty(self, name: str) -> torch.Tensor:
        info = self._infos[name]
        return torch.empty(info.shape, dtype=DTYPES[info.dtype])

    def read(self, whole: Parameters) -> str:
        """The weight root of `whole` alone."""
        for _ in self.tensors(whole):
            pass
        return self.root

    @property
    def root(self) -> str:
        """Once all tensors have come."""
        return compute_root(self._infos.values())

    def _digest(self, name: str, tensor: torch.Tensor) -> None:
        info = self._infos[name]
        blocks = (
            tensor.narrow(info.axis, one.start, one.stop - one.start) for one in list_blocks([info])
        )
        digests = tuple(digest_value(block) for block in blocks)
        self._infos[name] = replace(info, digests=digests)


class FromHuggingFace(SavedTensors):
    """What the rank at `place` would save before its first update."""

    def __init__(self, facts: ModelFacts, tensors: Tensors, place: RankPlace) -> None:
        self._rules, self._tensors, self._place = family_rules(facts), tensors, place
        self._specs = {
            f"main.{name}": Spec(f"main.{name}", "F32", shard_shape(self._rules[name], place))
            for name in held_names(self._rules, facts, place)
        }

    @property
    def specs(self) -> Mapping[str, Spec]:
        return self._specs

    def __getitem__(self, name: str) -> torch.Tensor:
        rule = self._rules[name.removeprefix("main.")]
        return cut_shard(rule, self._tensors, self._place).float()
