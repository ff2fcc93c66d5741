"""A policy that learns nothing: each update makes the next version's weights, as `versions` says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from services.trainer.meeting import Meeting
from services.trainer.ranks import join_ranks
from services.trainer.step.learner import StepResult
from tests.faults.versions import DTYPES, Weights, llama_shapes
from trimaran.config import RunConfig
from trimaran.model.folder import read_model_folder
from trimaran.types import TensorInfo
from weights.sending.snapshot import TensorPart
from weights.version.grid import cut_tensors

DTYPE_NAMES = {"bfloat16": "BF16", "float32": "F32"}


class StandInPolicy:
    """Tensor-parallel as a real one: of each tensor that is cut, a rank has an equal share."""

    def __init__(self, config: RunConfig, meeting: Meeting, rank: int) -> None:
        self.device, self.data_rank = torch.device("cpu"), 0
        self._rank, self._size = rank, config.num_trainer_ranks
        # The default group, in which the ranks send each other their digests.
        join_ranks("gloo", rank, self._size, meeting, config.start_timeout, config.start_timeout)
        facts = read_model_folder(config.model.path)
        shapes = llama_shapes(facts)
        dtype = config.model.dtype
        specs = [(name, DTYPE_NAMES[dtype], shape) for name, shape in shapes.items()]
        self._tensors = cut_tensors(specs, facts)
        self._weights = Weights.first(shapes, DTYPES[dtype], config.run.seed)

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return self._tensors

    def parts(self) -> Iterator[TensorPart]:
        for info in self._tensors:
            length = info.shape[info.axis]
            share = length // self._size
            whole = self._weights.tensors[info.name]
            if share * self._size == length and all(
                share * rank in info.cuts for rank in range(1, self._size)
            ):
                start = share * self._rank
                yield TensorPart(
                    info.name, start, start + share, whole.narrow(info.axis, start, share)
                )
            elif self._rank == 0:
                yield TensorPart(info.name, 0, length, whole)

    def add_up(self, values: torch.Tensor) -> torch.Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    def any_rank(self, flags: torch.Tensor) -> torch.Tensor:
        total = flags.int()
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
        return total.bool()

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._weights.tensors.items()

    @property
    def num_updates(self) -> int:
        return self._weights.step

    def state(self) -> dict[str, torch.Tensor]:
        return {"step": torch.tensor(self._weights.step)}

    def load_state(self, state: dict[str, torch.Tensor], num_updates: int) -> None:
        self._weights.advance(int(state["step"]))

    def advance(self, step: int) -> StepResult:
        self._weights.advance(step)
        return StepResult({"trainer/loss": 1.0 / step})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a stand-in policy does not compute: {name}")
