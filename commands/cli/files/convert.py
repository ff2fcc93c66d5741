"""`trimaran convert`: Hugging Face folders to checkpoints of any layout, of ours and of Megatron's, and back."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from commands.cli.manage.find_run import LATEST, find_folder, folder_of
from trimaran.config import RunConfig, TrainerSection, load_config
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError, UnavailableError
from trimaran.host.file_lock import try_lock
from trimaran.host.places import is_bucket
from trimaran.model.folder import ModelFacts, read_model_folder
from trimaran.model.trainer_layout import check_trainer_layout
from trimaran.run.context import RunContext
from trimaran.run.folder import CONFIG_NAME
from trimaran.run.place import place_url

DTYPES = ("bfloat16", "float32")
HUGGINGFACE, CHECKPOINT, TORCH_DIST = "huggingface", "checkpoint", "torch_dist"


def convert(options: argparse.Namespace) -> int:
    source, target = _source(options.source), Path(options.target)
    if importlib.util.find_spec("torch") is None:
        raise InputError("convert: torch is missing here; docs/install.md has what trainers need")
    try:
        return _convert(source, target, options)
    except OSError as error:
        raise UnavailableError(f"{target}: {error}; fix it and convert again") from None


def _convert(source: Path, target: Path, options: argparse.Namespace) -> int:
    from services.trainer.checkpoints.convert.torch_dist_reader import find_torch_dist

    if _is_model(source):
        if options.to == HUGGINGFACE:
            raise InputError(f"{source}: is a Hugging Face folder already; give --to checkpoint")
        return _from_huggingface(source, target, options)
    if folder := find_torch_dist(source):
        return _from_torch_dist(folder, target, options)
    return _from_checkpoint(source, target, options)


def _source(text: str) -> Path:
    """A folder, or a run by its id or `latest`, or a folder in it, such as latest/checkpoints/step-00100.

    What names neither is a path as well. Raises InputError where there is no run.
    """
    if Path(text).exists():
        return Path(text)
    run, _, rest = text.partition("/")
    folder = find_folder(run) if run == LATEST else folder_of(run) if run else None
    return folder / rest if folder else Path(text)


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _from_huggingface(source: Path, target: Path, options: argparse.Namespace) -> int:
    facts = read_model_folder(source)
    layout, dtype = _layout(facts, options), options.dtype or _dtype_of(source)
    from services.trainer.checkpoints.checkpoint import read_any
    from services.trainer.checkpoints.convert.convert import (
        huggingface_parameters,
        huggingface_to_checkpoint,
    )
    from services.trainer.checkpoints.convert.convert_megatron import write_torch_dist

    if options.to == TORCH_DIST:
        _check_free(target, layout, TORCH_DIST)
        whole = huggingface_parameters(source)
        with _alone(target, is_new=True):
            root = write_torch_dist(facts, whole, target, dtype)
        return _say(target, root, dtype)
    with _alone(target):
        made = huggingface_to_checkpoint(source, target, layout, dtype)
    return _say(made, read_any(made).root, dtype)


def _from_checkpoint(source: Path, target: Path, options: argparse.Namespace) -> int:
    from services.trainer.checkpoints.checkpoint import read_any
    from services.trainer.checkpoints.checkpoint_folder import find, newest
    from services.trainer.checkpoints.convert.convert import (
        checkpoint_parameters,
        checkpoint_to_checkpoint,
        write_huggingface,
    )
    from services.trainer.checkpoints.convert.convert_megatron import write_torch_dist

    run = _run_with_a_place(source) if newest(source) is None else None
    folder = find(
        Path(place_url(run, RunContext.in_folder(source).run_id)) if run else source, "convert"
    )
    state = read_any(folder)
    if options.to == CHECKPOINT:
        if given := [key for key in ("dtype", "model") if getattr(options, key)]:
            raise InputError(f"--{given[0]}: a checkpoint keeps what it is; leave it out")
        layout = _layout(state.model.facts, options)
        with _alone(target):
            made = checkpoint_to_checkpoint(folder, state, target, layout)
        return _say(made, state.root)
    facts = state.model.facts
    _check_free(target, _layout(facts, options), options.to or HUGGINGFACE)
    model = Path(options.model) if options.model else run.model.path if run else _model_of(folder)
    if (found := read_model_folder(model)) != facts:
        raise InputError(
            f"--model: {model} holds another model than {folder} was trained from: {found} instead"
            f" of {facts}"
        )
    dtype = options.dtype or state.layout.dtype
    whole = checkpoint_parameters(folder, state, model)
    with _alone(target, is_new=True):
        if options.to == TORCH_DIST:
            root = write_torch_dist(facts, whole, target, dtype)
        else:
            root = write_huggingface(facts, whole, model, target, dtype)
        if dtype == state.layout.dtype and root != state.root:
            shutil.rmtree(target)
            raise InputError(
                f"{folder}: with {model} the weights have root {root}, the trainer's had {state.root}; what"
                " was frozen is taken from there: give --model the model that the run began with"
            )
    return _say(target, root, dtype)


def _from_torch_dist(folder: Path, target: Path, options: argparse.Namespace) -> int:
    if options.to not in (None, HUGGINGFACE):
        raise InputError(
            f"{folder}: is a checkpoint of Megatron; make a Hugging Face folder of it, and of that --to"
            f" {options.to}"
        )
    if not options.model:
        raise InputError(
            f"{folder}: is a checkpoint of Megatron, so give --model FOLDER: the Hugging Face folder whose"
            " config.json and tokenizer the model has"
        )
    from services.trainer.checkpoints.convert.convert_megatron import torch_dist_to_huggingface

    model = Path(options.model)
    _check_free(target, _layout(read_model_folder(model), options), HUGGINGFACE)
    with _alone(target, is_new=True):
        root, dtype = torch_dist_to_huggingface(folder, model, target, options.dtype)
    return _say(target, root, dtype)


def _check_free(target: Path, layout: ParallelLayout, kind: str) -> None:
    """Checks a target of a kind that any layout reads."""
    if layout != ParallelLayout():
        what = "Hugging Face folder" if kind == HUGGINGFACE else f"{kind} checkpoint"
        raise InputError(f"a {what} has no layout ({layout}); give --to checkpoint")
    _check_absent(target)


def _check_absent(target: Path) -> None:
    if target.exists():
        raise InputError(f"{target}: is there already; name another folder")


@contextmanager
def _alone(target: Path, is_new: bool = False) -> Generator[None]:
    """While it is written: another conversion would write the same temporary folder. The kernel takes the lock
    from a process that is killed. `is_new`: nothing may be there.

    Raises InputError where another one writes it.
    """
    path = target.resolve()
    path = path.with_name(f".{path.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        if not _is_locked(lock.fileno(), path):
            raise InputError(
                f"{target}: another conversion writes it just now; wait for its end, or name another folder"
            )
        try:
            if is_new:  # the other one may have ended since that was looked at
                _check_absent(target)
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_locked(file: int, path: Path) -> bool:
    """False also where who had the lock removed the file meanwhile: the next one has a new file."""
    return try_lock(file, path) and path.exists() and os.path.samestat(os.fstat(file), path.stat())


def _say(made: Path, root: str, dtype: str = "") -> int:
    print(f"{made}\nweight root {root}" + (f" (in {dtype})" if dtype else ""))
    return 0


def _layout(facts: ModelFacts, options: argparse.Namespace) -> ParallelLayout:
    """With as few data-parallel ranks as the experts need. Raises InputError for one that the model
    cannot have."""
    tensor, expert = options.tensor_parallel, options.expert_parallel
    section = TrainerSection(
        tensor_parallel=tensor,
        pipeline_parallel=options.pipeline_parallel,
        expert_parallel=expert,
        data_parallel=expert // math.gcd(tensor, expert),
        sequence_parallel=tensor > 1,
    )
    check_trainer_layout(facts, section)
    return section.layout


def _run_with_a_place(source: Path) -> RunConfig | None:
    """A run's folder whose checkpoints lie where its `run.checkpoints` says. Raises InputError for a bucket."""
    if not (source / CONFIG_NAME).is_file():
        return None
    config = load_config(source / CONFIG_NAME)
    if is_bucket(config.run.checkpoints):
        place = place_url(config, RunContext.in_folder(source).run_id)
        raise InputError(
            f"convert: the checkpoints of {source} lie in {place}; fetch one, and name its folder"
        )
    return config if config.run.checkpoints else None


def _model_of(folder: Path) -> Path:
    """As the run's configuration beside the checkpoints names it."""
    config = folder.resolve().parent.parent / "config.yaml"
    if not config.is_file():
        raise InputError(
            f"{folder}: lies in no run folder, so give --model FOLDER: the Hugging Face folder whose"
            " config.json and tokenizer the model has"
        )
    return load_config(config).model.path


def _dtype_of(folder: Path) -> str:
    """As config.json names it. float32 also holds the numbers of any other."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    named = config.get("dtype") or config.get("torch_dtype")
    return named if named in DTYPES else "float32"
