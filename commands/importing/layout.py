"""Their devices, which train and generate in turns, as pools of ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from commands.importing.rows import KeyOutcome, becomes
from trimaran.errors import InputError


@dataclass(frozen=True, slots=True)
class Shape:
    """Their trainer's layout. `Shape(devices=8, tensor=2, rollout_tensor=1).split().replicas == 4`"""

    devices: int
    """Which train and generate in turns."""
    rollout_tensor: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False
    """Tensor-parallel ranks share the sequence where they do not share matrices."""
    distributes: bool = True
    """The optimizer is split over ranks that share parameters."""

    def split(self, in_turns: bool = False) -> Split:
        """Half of the devices train and the rest generates, or as near to it as the sizes go.

        `in_turns`: all of them do both. Raises InputError where the sizes do not go.
        """
        unit = self.tensor * self.pipeline * self.context
        # The smallest number of data-parallel ranks over which the experts divide.
        parts = self.expert * self.expert_tensor
        least = parts // math.gcd(parts, self.tensor * self.context)
        if not in_turns:
            data = max(1, self.devices // 2 // (unit * least)) * least
            replicas = max(1, (self.devices - data * unit) // self.rollout_tensor)
            return Split(self, data, replicas)
        if self.devices % (unit * least) or self.devices % self.rollout_tensor:
            raise InputError(
                f"run.pools=colocated: ranks come in {unit * least}s and a replica has {self.rollout_tensor} devices,"
                f" which do not both divide {self.devices}; leave the word out, or give other sizes"
            )
        return Split(self, self.devices // unit, self.devices // self.rollout_tensor, True)

    def outcome(self, in_turns: bool) -> KeyOutcome:
        split = self.split(in_turns)
        sizes: dict[str, Any] = {
            "tensor_parallel": self.tensor,
            "pipeline_parallel": self.pipeline,
            "context_parallel": self.context,
            "expert_parallel": self.expert,
        }
        if self.expert_tensor > 1:
            sizes["expert_tensor_parallel"] = self.expert_tensor
        if self.tensor > 1 and self.sequence:
            sizes["sequence_parallel"] = True
        if self.distributes and split.data * self.context > 1:
            sizes["distributed_optimizer"] = True
        ours = {f"trainer.{key}": size for key, size in sizes.items()}
        return becomes(split.settings() | ours, split.text())


@dataclass(frozen=True, slots=True)
class Split:
    """How many ranks train, and how many replicas generate."""

    shape: Shape
    data: int
    """Data-parallel ranks."""
    replicas: int
    in_turns: bool = False

    @property
    def trainers(self) -> int:
        return self.shape.tensor * self.shape.pipeline * self.shape.context * self.data

    @property
    def generators(self) -> int:
        return self.replicas * self.shape.rollout_tensor

    def settings(self) -> dict[str, Any]:
        sizes = {"trainer.data_parallel": self.data, "rollout.replicas": self.replicas}
        return {"run.pools": "colocated", **sizes} if self.in_turns else sizes

    def text(self) -> str:
        replicas = f"{self.replicas} x {self.shape.rollout_tensor}"
        if self.in_turns:
            return (
                f"{self.trainers} devices of one host train and generate ({replicas}) in turns, as there;"
                " `trimaran plan` says what fits, and what waits in the host's memory"
            )
        more = self.trainers + self.generators - self.shape.devices
        return (
            f"there {self.shape.devices} devices train and generate in turns; here {self.trainers} train and"
            f" {self.generators} generate ({replicas}){f', {more} more than there' if more > 0 else ''}. Choose other"
            " shares by trainer.data_parallel and rollout.replicas, or say run.pools=colocated behind the file, for"
            " turns as there; `trimaran plan` says what fits"
        )
