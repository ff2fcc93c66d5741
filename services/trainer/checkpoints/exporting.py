"""The Hugging Face folder that a run exports: its target, its files, its way to a bucket."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from services.trainer.checkpoints.adapter_files import write_adapter_folder
from services.trainer.checkpoints.model_files import write_model_folder
from services.trainer.checkpoints.tensor_file import Spec
from trimaran.config import RunConfig
from trimaran.errors import InputError, UnavailableError
from trimaran.host.places import Place
from trimaran.model.folder import ModelFacts
from trimaran.model.manifest import push_model
from trimaran.types import TensorInfo
from weights.version.manifest import num_bytes

MIB = 1 << 20


class Exportable(Protocol):
    """Weights that all ranks gather together."""

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(Hugging Face name, whole tensor); all ranks must iterate together."""
        ...

    def export_adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The same of the adapters of `trainer.lora`, by the names of `adapter_shapes`."""
        ...

    @property
    def adapter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """By Hugging Face name, of whole tensors."""
        ...


def find_target(folder: Path, path: str, tensors: Iterable[TensorInfo]) -> Path:
    """Where the model goes, in the run folder `folder`. Raises InputError for another place, and
    UnavailableError where the model does not fit on the disk."""
    target = (folder / path).resolve()
    if not target.is_relative_to(folder.resolve()) or target == folder:
        raise InputError(f"{path}: a model is exported into the run folder {folder}")
    needed = sum(map(num_bytes, tensors))
    if (free := shutil.disk_usage(folder).free) < needed:
        raise UnavailableError(
            f"{target}: the model takes {needed / MIB:,.0f} MiB, and its disk has"
            f" {free / MIB:,.0f} left; make room there"
        )
    return target


def write_export(
    policy: Exportable,
    config: RunConfig,
    facts: ModelFacts,
    tensors: Sequence[TensorInfo],
    target: Path,
) -> None:
    """On rank 0. With `trainer.lora` the adapters alone are beside the model, in a folder with `-adapter` after
    its name."""
    model = config.model
    specs = (Spec(info.name, info.dtype, info.shape) for info in tensors)
    write_model_folder(target, model.path, specs, policy.export(), model.dtype)
    if config.trainer.lora:
        shapes, adapters = policy.adapter_shapes, policy.export_adapters()
        write_adapter_folder(_adapter_folder(target), config, facts, shapes, adapters)


def join_export(policy: Exportable, config: RunConfig) -> None:
    """On the other ranks that send weights: their part of the gathers."""
    for _ in policy.export():
        pass
    if config.trainer.lora:
        for _ in policy.export_adapters():
            pass


def push_export(place: Place, folder: Path, target: Path, config: RunConfig) -> str:
    """To the run's place in a bucket, under the name that it has in the run folder. Where it lies."""
    name = target.relative_to(folder.resolve())
    push_model(target, place, name.as_posix())
    if config.trainer.lora:
        push_model(_adapter_folder(target), place, _adapter_folder(name).as_posix())
    return f"{place.url}/{name.as_posix()}"


def _adapter_folder(target: Path) -> Path:
    return target.with_name(f"{target.name}-adapter")
