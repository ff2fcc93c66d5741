"""Trainer checkpoints: `checkpoints/step-00010/`, written whole or not at all.

    state.json                 step, lineage, layout, model, the step's recorded answer, digests
    shard-0.safetensors        fp32 main weights and AdamW moments of that shard (shard_file.py)

Ranks that hold the same shard of the model hold the same state, so the first of them writes
(`trimaran.config.parallel`). With `trainer.distributed_optimizer` each rank writes its own part, and the file has its
rank's number; a tensor's name ends in @ and the place in the flat parameter where it begins.
A run with other shards reads its own out of these (resharding.py).

    step-00010.tmp ──▶ step-00010            while it is written, and once it is whole
    step-00010     ──▶ step-00010.replaced   what stood there before; gone once the new one stands

At every moment a whole checkpoint lies under one of these names, and `tidy` puts it back.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter

from services.trainer.checkpoints.checkpoint_folder import (
    FOLDER,
    PREFIX,
    STATE,
    TRIED,
    by_step,
    folder_of,
    named,
    step_of,
)
from services.trainer.checkpoints.shard_file import ShardFile, write_tensors
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError, UnavailableError
from trimaran.host.places import discard, put_in_place, sync
from trimaran.host.system_errors import refused
from trimaran.model.folder import ModelFacts
from trimaran.types import LedgerEnd

FORMAT = 1


@dataclass(frozen=True, slots=True)
class RankLayout:
    """How the ranks shared the model, and in what a checkpoint must agree with the run that resumes it.

    Example: RankLayout(ParallelLayout(data=2), dtype="bfloat16", updates_per_batch=1)
    """

    ranks: ParallelLayout
    dtype: str
    updates_per_batch: int
    """All of a step, those of further epochs, too."""
    distributed_optimizer: bool = False
    virtual_stages: int = 1
    merged: bool = True
    """Roots are of versions without adapters of their own."""

    @property
    def num_files(self) -> int:
        """With the distributed optimizer each rank writes one."""
        return self.ranks.num_ranks if self.distributed_optimizer else self.ranks.num_shards

    @property
    def cut(self) -> tuple[int, ...]:
        """On what it depends which shard has which part of the model."""
        ranks = self.ranks
        experts = ranks.expert, ranks.expert_tensor
        return ranks.tensor, ranks.pipeline, *experts, self.virtual_stages, *ranks.layers

    def named(self) -> dict[str, object]:
        """What must agree, as the configuration calls it."""
        return {
            "dtype": self.dtype,
            "updates_per_batch": self.updates_per_batch,
            "trainer.lora.merged": self.merged,
        }


@dataclass(frozen=True, slots=True)
class TrainedModel:
    name: str
    """The name of its folder."""
    facts: ModelFacts
    """Architecture and shapes."""


@dataclass(frozen=True, slots=True)
class TrainerState:
    step: int
    lineage: int
    num_updates: int
    """Updates of the optimizer. Those that were left out because of non-finite numbers do not count."""
    root: str
    """Weight root of the step; the loaded weights must reach it again."""
    metrics: Mapping[str, float]
    """The step's metrics, for a repeated request."""
    nonfinite: str
    """The same: why updates of the step were left out."""
    layout: RankLayout
    model: TrainedModel
    shards: tuple[str, ...]
    """The digest of each, by its number."""
    ledger: LedgerEnd | None = None
    """How far the run's ledger had come."""
    score: float | None = None
    """How good its step is by `run.best_by`, where that is known; more is better."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Which checkpoints stay. Example: Keep(newest=2, best=1).chosen({10: 0.5, 20: None, 30: 0.4, 40: None})
    has 10, 30 and 40."""

    newest: int
    best: int = 0

    def chosen(self, scores: Mapping[int, float | None]) -> set[int]:
        """The steps to keep of those that were saved, with their scores. Of equally good ones the later counts."""
        steps = sorted(scores)
        scored = [(score, step) for step in steps if (score := scores[step]) is not None]
        best = sorted(scored)[len(scored) - min(self.best, len(scored)) :]
        return {*steps[-self.newest :], *(step for _, step in best)}


def write_shard(
    run_folder: Path, step: int, number: int, tensors: Mapping[str, torch.Tensor]
) -> str:
    """One rank's shard of the model, under a temporary name until `publish`. Its digest.

    Raises InternalError when it holds a number that is not finite.
    """
    folder = _temporary(run_folder, step)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _shard_name(number)
    digest = write_tensors(path, tensors)
    sync(path)
    return digest


def publish(
    run_folder: Path,
    state: TrainerState,
    keep: Keep,
    add: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Once every rank has written: add the state, and whatever `add` puts into the folder; rename, and
    drop all but those to `keep`.

    Raises UnavailableError where a rank has written its shard into another folder, as on a host that does
    not see this one.
    """
    temporary, folder = _temporary(run_folder, state.step), folder_of(run_folder, state.step)
    names = map(_shard_name, range(len(state.shards)))
    if lacking := [name for name in names if not (temporary / name).is_file()]:
        raise UnavailableError(
            f"{temporary}: lacks {', '.join(lacking)}, written on a host that has another folder of this"
            " name; let run.checkpoints name a folder that all hosts of the trainer see, or a bucket"
        )
    add(temporary)
    (temporary / STATE).write_text(dump_state(state), encoding="utf-8")
    sync(temporary / STATE)
    put_in_place(temporary, folder)
    sync(run_folder)
    for given_up in named(run_folder, ".tmp"):
        shutil.rmtree(given_up)
    folders = {step_of(path): path for path in by_step(run_folder)}
    kept = keep.chosen({step: _score(path) for step, path in folders.items()})
    for step in folders.keys() - kept:
        _drop(folders[step])
    return folder


def _score(folder: Path) -> float | None:
    return score_of((folder / STATE).read_text(encoding="utf-8", errors="replace"))


def score_of(text: str) -> float | None:
    """The score in a state's text; None where it has none that can be compared."""
    try:
        score = json.loads(text).get("score")
    except (ValueError, AttributeError):
        return None
    return score if isinstance(score, float) and math.isfinite(score) else None


def dump_state(state: TrainerState) -> str:
    """What `parse_state` reads."""
    return json.dumps({"format": FORMAT, **asdict(state)}, indent=2) + "\n"


def tidy(run_folder: Path) -> None:
    """After an interrupted save or start: put back what was to be replaced, drop what is not whole."""
    for path in named(run_folder, ".tmp"):
        shutil.rmtree(path)
    for path in named(run_folder, ""):
        if not (path / STATE).is_file():
            shutil.rmtree(path)
    for path in named(run_folder, ".replaced"):
        folder = path.with_suffix("")
        if folder.exists():
            discard(path)
        else:
            path.rename(folder)
    for path in (run_folder / FOLDER).glob(f"{PREFIX}*.replaced-*"):  # `discard` could not, then
        shutil.rmtree(path, ignore_errors=True)
    for path in (run_folder / FOLDER).glob(f"*{TRIED}*"):  # of a start that was broken off
        path.unlink(missing_ok=True)


def read_state(folder: Path, layout: RankLayout, model: TrainedModel) -> TrainerState:
    """Raises InputError when the checkpoint is broken, or of another model. Its layout may be another."""
    return parse_state(_read_text(folder), str(folder), layout, model)


def read_any(folder: Path) -> TrainerState:
    """The state of a checkpoint of any model. Raises InputError when it is broken."""
    return _parse(_read_text(folder), str(folder))


def check_facts(folder: Path, state: TrainerState, facts: ModelFacts) -> None:
    """For a run that begins with what another one saved. Raises InputError where the models differ."""
    wanted = TrainedModel(state.model.name, facts)
    _check_same(str(folder), "model", _flat(state.model), _flat(wanted))


def _read_text(folder: Path) -> str:
    try:
        return (folder / STATE).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise refused(f"{folder / STATE}: not a trainer checkpoint", error) from None


def parse_state(text: str, folder: str, layout: RankLayout, model: TrainedModel) -> TrainerState:
    """The same of a state's text; `folder`: for errors."""
    state = _parse(text, folder)
    _check_same(folder, "model", _flat(state.model), _flat(model))
    _check_same(folder, "configuration", state.layout.named(), layout.named())
    return state


def _parse(text: str, folder: str) -> TrainerState:
    try:
        tree = json.loads(text)
        written = tree.get("format")
        state = TypeAdapter(TrainerState).validate_python(tree) if written == FORMAT else None
    except (ValueError, AttributeError) as error:
        raise InputError(f"{folder}/{STATE}: not a trainer checkpoint ({error})") from None
    if state is None:
        raise InputError(
            f"{folder}: a checkpoint of format {written}, this Trimaran reads format {FORMAT};"
            " resume with the version that saved it, or start a new run"
        )
    if len(state.shards) != state.layout.num_files:
        raise InputError(f"{folder}/{STATE}: names {len(state.shards)} shards")
    return state


def _flat(model: TrainedModel) -> dict[str, object]:
    return {"model name": model.name, **asdict(model.facts)}


def _check_same(
    folder: str, what: str, saved: Mapping[str, object], wanted: Mapping[str, object]
) -> None:
    differ = [key for key in saved if saved[key] != wanted[key]]
    if differ:
        have = ", ".join(f"{key} {saved[key]}" for key in differ)
        want = ", ".join(str(wanted[key]) for key in differ)
        raise InputError(
            f"{folder}: was saved with {have}, this run has {want}; resume with the saved {what}"
        )


def open_shard(folder: Path, state: TrainerState, number: int) -> ShardFile:
    """Raises InputError when it cannot be read or is not what was written."""
    path = folder / _shard_name(number)
    if not path.exists():  # as it came from a bucket (checkpoints.py)
        copied = folder / f"shard-{number}-{state.shards[number]}.safetensors"
        path = copied if copied.exists() else path
    return ShardFile(path, state.shards[number], f"{path}", remedy(folder.name))


def remedy(name: str) -> str:
    """For the damaged checkpoint `name`."""
    return f"remove {name} to resume from the checkpoint before it, if one was kept"


def _temporary(run_folder: Path, step: int) -> Path:
    folder = folder_of(run_folder, step)
    return folder.with_name(f"{folder.name}.tmp")


def _drop(folder: Path) -> None:
    """Without its state it is no checkpoint any more, however little of it is removed."""
    (folder / STATE).unlink()
    shutil.rmtree(folder)


def _shard_name(number: int) -> str:
    return f"shard-{number}.safetensors"
