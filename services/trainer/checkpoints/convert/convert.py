"""A Hugging Face folder <-> a checkpoint of any layout, in one process, without ranks and without a model.

    Hugging Face ─▶ checkpoint      main weights in float32; no moments, as before the first update
    checkpoint   ─▶ Hugging Face    main weights, rounded to a dtype
    checkpoint   ─▶ checkpoint      of another layout, moments and all

One parameter is on the host at a time, besides pages of mapped files. Whatever comes from Hugging Face in
bfloat16 or float16 goes back bit for bit: float32 holds each of their numbers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint import Keep, RankLayout, TrainedModel, TrainerState
from services.trainer.checkpoints.checkpoint_folder import newest
from services.trainer.checkpoints.convert.whole_model import (
    FromHuggingFace,
    Parameters,
    Version,
    parameters,
)
from services.trainer.checkpoints.model_files import load_tensors, write_model_folder
from services.trainer.checkpoints.resharding import Resharded
from services.trainer.checkpoints.saved import SavedTensors
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.parameters.mapping import check_names
from trimaran.config.parallel import ParallelLayout, RankPlace
from trimaran.errors import InputError, UnavailableError
from trimaran.model.folder import ModelFacts


def checkpoint_to_huggingface(
    folder: Path, state: TrainerState, source: Path, target: Path, dtype: str
) -> str:
    """The weight root of what was written. `folder` holds the shards; `source` is a folder of the same
    model, for tokenizer, config.json and what was frozen.

    Raises InputError for a damaged shard, UnavailableError where the disk has no room.
    """
    whole = checkpoint_parameters(folder, state, source)
    return write_huggingface(state.model.facts, whole, source, target, dtype)


def checkpoint_parameters(folder: Path, state: TrainerState, source: Path) -> Parameters:
    """The parameters of the whole model. `folder`, `source`: as above."""
    facts = state.model.facts
    whole = Resharded(
        facts,
        state.layout,
        ParallelLayout().place(0),
        lambda number: checkpoint.open_shard(folder, state, number),
    )
    base = FromHuggingFace(facts, load_tensors(source, facts.tied), ParallelLayout().place(0))
    return parameters(facts, whole, base)


def write_huggingface(
    facts: ModelFacts, whole: Parameters, source: Path, target: Path, dtype: str
) -> str:
    """The weight root of what was written. `source`: a folder of the same model, for all but the weights.

    Raises UnavailableError where the disk has no room."""
    version = Version(facts, getattr(torch, dtype))
    check_room(target, sum(spec.num_bytes for spec in version.specs))
    write_model_folder(target, source, version.specs, version.tensors(whole), dtype)
    return version.root


def huggingface_to_checkpoint(
    source: Path, target: Path, layout: ParallelLayout, dtype: str
) -> Path:
    """A checkpoint of step 0, in `target`/checkpoints. `dtype`: in which a run computes with the weights; their root
    is of these. Raises InputError for a folder that is no model of ours."""
    _check_target(target)
    facts, tensors = _read_huggingface(source)
    root = Version(facts, getattr(torch, dtype)).read(huggingface_parameters(source))
    state = TrainerState(
        step=0,
        lineage=0,
        num_updates=0,
        root=root,
        metrics={},
        nonfinite="",
        layout=RankLayout(layout, dtype, updates_per_batch=1),
        model=TrainedModel(source.name, facts),
        shards=(),
    )
    return _write(target, state, lambda place: FromHuggingFace(facts, tensors, place))


def huggingface_parameters(source: Path) -> Parameters:
    """The parameters of the whole model. Raises InputError as above."""
    facts, tensors = _read_huggingface(source)
    return parameters(facts, FromHuggingFace(facts, tensors, ParallelLayout().place(0)), {})


def _read_huggingface(source: Path) -> tuple[ModelFacts, dict[str, torch.Tensor]]:
    architecture = read_architecture(source)
    tensors = load_tensors(source, architecture.facts.tied)
    check_names(tensors, architecture)
    return architecture.facts, tensors


def checkpoint_to_checkpoint(
    folder: Path, state: TrainerState, target: Path, layout: ParallelLayout
) -> Path:
    """The same step, with moments where it has some, as `layout` would have saved it without a
    distributed optimizer or virtual stages."""
    _check_target(target)

    def shard(place: RankPlace) -> SavedTensors:
        return Resharded(
            state.model.facts,
            state.layout,
            place,
            lambda number: checkpoint.open_shard(folder, state, number),
        )

    saved = state.layout
    plain = RankLayout(layout, saved.dtype, saved.updates_per_batch)
    return _write(target, replace(state, layout=plain), shard)


def _check_target(target: Path) -> None:
    """Drops what a conversion that was broken off has left."""
    if (target / "config.yaml").exists():
        raise InputError(f"{target}: is a run's folder; name another one")
    if (found := newest(target)) is not None:
        raise InputError(f"{target}: holds {found.name} already; name another folder")
    checkpoint.tidy(target)


def _write(target: Path, state: TrainerState, shard: Callable[[RankPlace], SavedTensors]) -> Path:
    senders = state.layout.ranks.senders
    specs = [spec for place in senders for spec in shard(place).specs.values()]
    check_room(target, sum(spec.num_bytes for spec in specs))
    try:
        digests = [
            checkpoint.write_shard(target, state.step, place.shard, shard(place))
            for place in senders
        ]
        return checkpoint.publish(target, replace(state, shards=tuple(digests)), Keep(newest=1))
    except BaseException:  # a disk that it has filled would stay full
        checkpoint.tidy(target)
        raise


def check_room(target: Path, num_bytes: int) -> None:
    """Raises UnavailableError where the disk has less."""
    there = next(path for path in (target.absolute(), *target.absolute().parents) if path.exists())
    if (free := shutil.disk_usage(there).free) < num_bytes:
        raise UnavailableError(
            f"{target}: needs {num_bytes / 1e9:,.2f} GB, and its disk has {free / 1e9:,.2f} left; make"
            " room there"
        )
