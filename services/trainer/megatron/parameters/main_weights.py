"""The float32 weights that the optimizer adds to, of all parameters of a rank.

Where bfloat16 computes they are copies, else the parameters themselves. With the distributed optimizer each
of the ranks with the same parameters has a part of them, counted through the flat parameter. The parts follow
from where the parameters lie in megatron-core's buffers, whatever their shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

PARTS = (
    ("model_fp32_groups", "shard_fp32_groups"),
    ("model_float16_groups", "shard_fp32_from_float16_groups"),
)
"""Where megatron-core's DistributedOptimizer lists parameters, and the parts of them that it updates."""


@dataclass(frozen=True, slots=True)
class MainWeight:
    parameter: str
    """Its name."""
    held: torch.nn.Parameter
    """The parameter itself; its values may be away on the host."""
    main: torch.Tensor
    part: slice | None = None
    """The part of the flat parameter, where this is not the whole one."""

    @property
    def shape(self) -> torch.Size:
        """The parameter's."""
        return self.held.shape

    @property
    def computes(self) -> torch.Tensor:
        """The elements of the parameter itself, a view: its values must be there."""
        return self.held if self.part is None else self.held.detach().view(-1)[self.part]

    @property
    def name(self) -> str:
        """The parameter's; with @ and its first element where this is a part of it."""
        return self.parameter if self.part is None else f"{self.parameter}@{self.part.start}"

    def is_in(self, kind: str, state: Mapping[str, torch.Tensor]) -> bool:
        return f"{kind}.{self.name}" in state or f"{kind}.{self.parameter}" in state

    def find(self, kind: str, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """These elements of what a checkpoint holds, be it the whole parameter or this part of it.

        Example: `find("exp_avg", state)`
        """
        if self.part is None or f"{kind}.{self.name}" in state:
            return state[f"{kind}.{self.name}"]
        return state[f"{kind}.{self.parameter}"].reshape(-1)[self.part]

    @property
    def is_copy(self) -> bool:
        """Else the parameter itself is what the optimizer adds to."""
        return self.main.dtype != self.held.dtype


def main_weights(named: Iterable[tuple[str, torch.nn.Parameter]]) -> Iterator[MainWeight]:
    """The main weights of the parameters that this rank's optimizer updates."""
    for name, parameter in named:
        part: slice | None = getattr(parameter, "main_part", None)
        if part is not None:
            yield MainWeight(name, parameter, parameter.main_param, part)  # type: ignore[attr-defined]
        elif not hasattr(parameter, "main_part"):
            main = getattr(parameter, "main_param", parameter)
            yield MainWeight(name, parameter, main)


def mark_parts(stages: Iterable[torch.nn.Module], optimizer: Any) -> None:
    """With the distributed optimizer: note at each parameter which part of it this rank updates."""
    for parameter in chain.from_iterable(stage.parameters() for stage in stages):
        parameter.main_part = None  # type: ignore[attr-defined]
    for one in optimizer.chained_optimizers:
        if one.optimizer is None:  # nothing of this kind trains on this rank
            continue
        for of_model, of_optimizer in PARTS:
            parameters, mains = (chain(*getattr(one, key)) for key in (of_model, of_optimizer))
            for parameter, main in zip(parameters, mains, strict=True):
                found = one._get_model_param_range_map(parameter)["param"]
                parameter.main_part, parameter.main_param = slice(found.start, found.end), main


def fill_main(parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
    """From float32 values in the parameter's shape, where there is a copy of it."""
    main = getattr(parameter, "main_param", None)
    if main is not None:
        part: slice | None = getattr(parameter, "main_part", None)
        main.copy_(whole if part is None else whole.reshape(-1)[part])
