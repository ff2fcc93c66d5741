"""Trainer checkpoints: `checkpoints/step-00010/`, written whole or not at all.

    state.json                 step, lineage, layout, model, the step's recorded answer, digests
    shard-0.safetensors        fp32 main weights and AdamW moments of that shard

Ranks that hold the same shard of the model hold the same state, so the first of them writes
(`trimaran.parallel`). With `trainer.distributed_optimizer` each rank writes its own part, and the shard has its
rank's number; a tensor's name ends in @ and the place in the flat parameter where it begins.

    step-00010.tmp ──▶ step-00010            while it is written, and once it is whole
    step-00010     ──▶ step-00010.replaced   what stood there before; gone once the new one stands

At every moment a whole checkpoint lies under one of these names, and `tidy` puts it back.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from xxhash import xxh3_128

from services.trainer.finite import is_finite
from services.trainer.tensor_file import TensorFile, raw, spec_of
from trimaran.errors import InputError, InternalError
from trimaran.model_folder import ModelFacts
from trimaran.parallel import Layout
from trimaran.places import put_in_place, sync
from trimaran.types import LedgerEnd

FOLDER = "checkpoints"
STATE = "state.json"
PREFIX = "step-"
FORMAT = 3
"""1 had neither digests nor the model in it, 2 no layout with a pipeline."""


@dataclass(frozen=True, slots=True)
class RankLayout:
    """In what a checkpoint must agree with the run that loads it.

    Example: RankLayout(Layout(data=2), dtype="bfloat16", updates_per_batch=1)
    """

    ranks: Layout
    dtype: str
    updates_per_batch: int
    """All of a step, those of further epochs, too."""
    distributed_optimizer: bool = False
    virtual_stages: int = 1

    @property
    def num_shards(self) -> int:
        """With the distributed optimizer each rank has a part of its own."""
        return self.ranks.num_ranks if self.distributed_optimizer else self.ranks.num_shards

    def named(self) -> dict[str, object]:
        """As the configuration calls them."""
        sizes = {f"{name}_parallel": size for name, size in asdict(self.ranks).items()}
        return {
            **sizes,
            "dtype": self.dtype,
            "updates_per_batch": self.updates_per_batch,
            "distributed_optimizer": self.distributed_optimizer,
            "virtual_stages": self.virtual_stages,
        }


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    """Of its folder."""
    facts: ModelFacts
    """Architecture and shapes."""


@dataclass(frozen=True, slots=True)
class TrainerState:
    step: int
    lineage: int
    num_updates: int
    """Of the optimizer. Updates that were left out because of non-finite numbers do not count."""
    root: str
    """Weight root of the step; the loaded weights must reach it again."""
    metrics: Mapping[str, float]
    """Of the step, for a repeated request."""
    nonfinite: str
    """The same: why updates of the step were left out."""
    layout: RankLayout
    model: Model
    shards: tuple[str, ...]
    """The digest of each, by its number."""
    ledger: LedgerEnd | None = None
    """How far the run's ledger had come."""


def folder_of(run_folder: Path, step: int) -> Path:
    return run_folder / FOLDER / f"{PREFIX}{step:05d}"


def newest(run_folder: Path) -> Path | None:
    found = _by_step(run_folder)
    return found[-1] if found else None


def _by_step(run_folder: Path) -> list[Path]:
    whole = [path for path in _named(run_folder, "") if (path / STATE).is_file()]
    return sorted(whole, key=lambda path: int(path.name.removeprefix(PREFIX)))


def _named(run_folder: Path, suffix: str) -> list[Path]:
    """Folders step-<number><suffix>; others in there are not ours."""
    name = re.compile(rf"{PREFIX}\d+{re.escape(suffix)}")
    return [path for path in (run_folder / FOLDER).glob("*") if name.fullmatch(path.name)]


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


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """A safetensors file and the `shard_digest` of its tensors, which come to the host one by one.

    Raises InternalError for a number that is not finite; the file is removed then.
    """
    digest = xxh3_128()
    try:
        with TensorFile(path, (spec_of(name, tensors[name]) for name in sorted(tensors))) as file:
            for name in sorted(tensors):
                host = file.write(name, tensors[name])
                if not is_finite(host):
                    raise InternalError(
                        f"{name} holds numbers that are not finite; nothing is saved"
                    )
                _digest_tensor(digest, name, host)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return digest.hexdigest()


def publish(run_folder: Path, state: TrainerState, keep: int) -> Path:
    """Once every rank has written: add the state, rename, drop all but the newest `keep`."""
    temporary, folder = _temporary(run_folder, state.step), folder_of(run_folder, state.step)
    (temporary / STATE).write_text(dump_state(state), encoding="utf-8")
    sync(temporary / STATE)
    put_in_place(temporary, folder)
    sync(run_folder)
    for given_up in _named(run_folder, ".tmp"):
        shutil.rmtree(given_up)
    for old in _by_step(run_folder)[:-keep]:
        _drop(old)
    return folder


def dump_state(state: TrainerState) -> str:
    """What `parse_state` reads."""
    return json.dumps({"format": FORMAT, **asdict(state)}, indent=2) + "\n"


def tidy(run_folder: Path) -> None:
    """After an interrupted save: put back what was to be replaced, drop what is not whole."""
    for path in _named(run_folder, ".tmp"):
        shutil.rmtree(path)
    for path in _named(run_folder, ""):
        if not (path / STATE).is_file():
            shutil.rmtree(path)
    for path in _named(run_folder, ".replaced"):
        folder = path.with_suffix("")
        if folder.exists():
            shutil.rmtree(path)
        else:
            path.rename(folder)


def read_state(folder: Path, layout: RankLayout, model: Model) -> TrainerState:
    """Raises InputError when the checkpoint is broken, or of another layout or model."""
    try:
        text = (folder / STATE).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / STATE}: not a trainer checkpoint ({error})") from None
    return parse_state(text, str(folder), layout, model)


def parse_state(text: str, folder: str, layout: RankLayout, model: Model) -> TrainerState:
    """The same of a state's text; `folder`: for errors."""
    try:
        tree = json.loads(text)
        written = tree.pop("format", 1)
        if written != FORMAT:
            raise InputError(
                f"{folder}: a checkpoint of format {written}, this Trimaran reads format {FORMAT};"
                " resume with the version that saved it, or start a new run"
            )
        state = _parse_state(tree)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{folder}/{STATE}: not a trainer checkpoint ({error})") from None
    _check_same(folder, "model", _flat(state.model), _flat(model))
    _check_same(folder, "configuration", state.layout.named(), layout.named())
    if len(state.shards) != layout.num_shards:
        raise InputError(f"{folder}/{STATE}: names {len(state.shards)} shards")
    return state


def _parse_state(tree: dict[str, Any]) -> TrainerState:
    model = Model(tree["model"]["name"], ModelFacts(**tree["model"]["facts"]))
    ranks = Layout(**tree["layout"]["ranks"])
    layout, shards = RankLayout(**{**tree["layout"], "ranks": ranks}), tuple(tree["shards"])
    ledger = tree.get("ledger")
    parsed = {"layout": layout, "model": model, "shards": shards}
    return TrainerState(**{**tree, **parsed, "ledger": ledger and LedgerEnd(**ledger)})


def _flat(model: Model) -> dict[str, object]:
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


def read_shard(folder: Path, number: int, digest: str) -> dict[str, torch.Tensor]:
    """Raises InputError when it cannot be read or is not what was written."""
    path = folder / _shard_name(number)
    return load_shard(path, digest, f"{path}", folder.name)


def load_shard(path: Path, digest: str, where: str, name: str) -> dict[str, torch.Tensor]:
    """The same of a part's file. `where` it was saved, and the checkpoint's `name`: for errors."""
    remedy = f"remove {name} to resume from the checkpoint before it, if one was kept"
    try:
        shard = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{where}: cannot be read ({error}); {remedy}") from None
    if shard_digest(shard) != digest:
        raise InputError(f"{where}: is damaged, its digest is not that of {STATE}; {remedy}")
    return shard


def shard_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """xxh3-128 over the tensors by name: name, dtype, shape and bytes of each. On the host."""
    digest = xxh3_128()
    for name in sorted(tensors):
        _digest_tensor(digest, name, tensors[name])
    return digest.hexdigest()


def _digest_tensor(digest: xxh3_128, name: str, tensor: torch.Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(raw(tensor))


def _temporary(run_folder: Path, step: int) -> Path:
    folder = folder_of(run_folder, step)
    return folder.with_name(f"{folder.name}.tmp")


def _drop(folder: Path) -> None:
    """Without its state it is no checkpoint any more, however little of it is removed."""
    (folder / STATE).unlink()
    shutil.rmtree(folder)


def _shard_name(number: int) -> str:
    return f"shard-{number}.safetensors"
