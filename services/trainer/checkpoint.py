"""Trainer checkpoints: `checkpoints/step-00010/`, written whole or not at all.

    state.json                 step, lineage, layout and the step's recorded answer
    tensor-rank-0.safetensors  fp32 main weights and AdamW moments of that shard

Data-parallel ranks hold the same state, so the first of them writes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trimaran.errors import InputError

FOLDER = "checkpoints"
STATE = "state.json"
STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True, slots=True)
class Layout:
    """What a checkpoint must agree in with the run that loads it."""

    tensor_parallel: int
    data_parallel: int
    dtype: str
    updates_per_batch: int


@dataclass(frozen=True, slots=True)
class TrainerState:
    step: int
    lineage: int
    num_updates: int
    root: str
    """Weight root of the step; the loaded weights must reach it again."""
    metrics: Mapping[str, float]
    """Of the step, for a repeated request."""
    layout: Layout


def folder_of(run_folder: Path, step: int) -> Path:
    return run_folder / FOLDER / f"step-{step:05d}"


def newest(run_folder: Path) -> Path | None:
    found = _by_step(run_folder)
    return found[-1] if found else None


def _by_step(run_folder: Path) -> list[Path]:
    steps = {}
    for path in (run_folder / FOLDER).glob("step-*"):
        if (match := STEP.fullmatch(path.name)) and (path / STATE).is_file():
            steps[int(match[1])] = path
    return [steps[step] for step in sorted(steps)]


def write_shard(
    run_folder: Path, step: int, tensor_rank: int, tensors: Mapping[str, torch.Tensor]
) -> None:
    """One tensor-parallel rank's part, under a temporary name until `publish`."""
    folder = _temporary(run_folder, step)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _shard_name(tensor_rank)
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, path)
    _sync(path)


def publish(run_folder: Path, state: TrainerState, keep: int) -> Path:
    """Once every rank has written: add the state, rename, drop all but the newest `keep`."""
    temporary = _temporary(run_folder, state.step)
    (temporary / STATE).write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    _sync(temporary / STATE)
    _sync(temporary)
    folder = folder_of(run_folder, state.step)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    _sync(folder.parent)
    for old in _by_step(run_folder)[:-keep]:
        shutil.rmtree(old)
    return folder


def discard_unfinished(run_folder: Path) -> None:
    """What an interrupted save left."""
    for path in (run_folder / FOLDER).glob("step-*.tmp"):
        shutil.rmtree(path)


def read_state(folder: Path, layout: Layout) -> TrainerState:
    """Raises InputError when the checkpoint is broken or of another layout."""
    try:
        tree = json.loads((folder / STATE).read_text(encoding="utf-8"))
        state = TrainerState(**{**tree, "layout": Layout(**tree["layout"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / STATE}: not a trainer checkpoint ({error})") from None
    for key, have in asdict(state.layout).items():
        if (want := getattr(layout, key)) != have:
            raise InputError(
                f"{folder}: was saved with {key} {have}, this run has {want};"
                " resume with the saved configuration"
            )
    return state


def read_shard(folder: Path, tensor_rank: int) -> dict[str, torch.Tensor]:
    path = folder / _shard_name(tensor_rank)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def _temporary(run_folder: Path, step: int) -> Path:
    folder = folder_of(run_folder, step)
    return folder.with_name(f"{folder.name}.tmp")


def _shard_name(tensor_rank: int) -> str:
    return f"tensor-rank-{tensor_rank}.safetensors"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
