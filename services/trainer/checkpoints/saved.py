"""Tensors that are read from a disk, or put together, when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch

from services.trainer.checkpoints.tensor_file import Spec, spec_of


class SavedTensors(Mapping[str, torch.Tensor], ABC):
    """By name. `tensors[name]` does the work, each time; names, dtypes and shapes are known before."""

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, Spec]: ...

    @abstractmethod
    def __getitem__(self, name: str) -> torch.Tensor: ...

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __contains__(self, name: object) -> bool:
        return name in self.specs

    def __len__(self) -> int:
        return len(self.specs)


def specs_of(tensors: Mapping[str, torch.Tensor]) -> Mapping[str, Spec]:
    """The specs of tensors by name, without making those that are not there yet."""
    if isinstance(tensors, SavedTensors):
        return tensors.specs
    return {name: spec_of(name, tensor) for name, tensor in tensors.items()}
