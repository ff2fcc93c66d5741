"""Where a trainer's checkpoints lie: in a folder that all its hosts see, or in a bucket.

In a folder `services/trainer/checkpoints/checkpoint.py` says how. In a bucket:

    PLACE/RUN_ID/checkpoints/step-00010/shard-0-<digest>.safetensors
    PLACE/RUN_ID/checkpoints/step-00010/state.json      written last: it names the others by digest

A rank writes its part to its own disk, then uploads it. The part stays on the disk until the next one
is safe, so that a start on the same host need not fetch it. A host that lacks it fetches it, and
checks it by the digest in its name. So a part that an earlier process left harms nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint import Keep, RankLayout, TrainedModel, TrainerState
from services.trainer.checkpoints.checkpoint_folder import FOLDER, PREFIX, STATE, find, newest
from services.trainer.checkpoints.convert.convert import checkpoint_to_huggingface
from services.trainer.checkpoints.joined import refuse_adapters, whole_shard
from services.trainer.checkpoints.resharding import Resharded
from services.trainer.checkpoints.saved import SavedTensors
from services.trainer.checkpoints.shard_file import ShardFile, write_tensors
from services.trainer.megatron.parameters.adapter_rules import trained_rules
from trimaran.config import LoraSection, RunConfig
from trimaran.errors import InputError, InternalError, NotFoundError, UnavailableError
from trimaran.host.places import Place, fetch_file, is_bucket, sync
from trimaran.run.context import RunContext
from trimaran.run.place import place_url

logger = logging.getLogger(__name__)

Tensors = Mapping[str, torch.Tensor]
HUGGINGFACE = "huggingface"
"""The folder in a checkpoint, where `run.checkpoint_models` asks for it."""
STATE_NAME = re.compile(rf"{FOLDER}/({PREFIX}(\d+))/{re.escape(STATE)}")


class LoadedCheckpoint(NamedTuple):
    """The newest checkpoint, as one rank reads it."""

    state: TrainerState
    shard: SavedTensors
    """What this rank would have saved: as it was saved, or out of the shards of another layout."""
    place: str


class Checkpoints(Protocol):
    """Calls block, and each is whole or has changed nothing."""

    def write_shard(self, step: int, number: int, tensors: Tensors) -> str:
        """One rank's shard of the model, which is no checkpoint until `publish`. Its digest.

        Raises InternalError when it holds a number that is not finite.
        """
        ...

    def publish(self, state: TrainerState, keep: Keep) -> str:
        """Once every rank has written. Drops all but those to `keep`; where it lies."""
        ...

    def tidy(self) -> None:
        """After an interrupted save."""
        ...

    def load(
        self, layout: RankLayout, model: TrainedModel, rank: int, lora: LoraSection | None = None
    ) -> LoadedCheckpoint | None:
        """The newest, of a run with `lora`; None before the first. Raises InputError when it is broken, or of another
        model."""
        ...


def open_checkpoints(config: RunConfig, run: RunContext, place: Place | None) -> Checkpoints:
    """As `run.checkpoints` says. `place`: the run's own in a bucket."""
    if place is not None:
        return BucketCheckpoints(place, run.folder)
    model, folder = config.model, shared_folder(config, run)
    if not config.run.checkpoint_models:
        return FolderCheckpoints(folder)

    def add_model(to: Path, state: TrainerState) -> None:
        target = to / HUGGINGFACE
        root = checkpoint_to_huggingface(to, state, model.path, target, model.dtype)
        if root != state.root:
            raise InternalError(f"{target}: has weight root {root}, the trainer's is {state.root}")
        for path in (*target.iterdir(), target):
            sync(path)

    return FolderCheckpoints(folder, add_model)


def shared_folder(config: RunConfig, run: RunContext) -> Path:
    """Where this run's checkpoints and its model go, or are put together before they go to a bucket."""
    if config.run.checkpoints is None or is_bucket(config.run.checkpoints):
        return run.folder
    return Path(place_url(config, run.run_id))


def read_shard(
    state: TrainerState,
    layout: RankLayout,
    lora: LoraSection | None,
    rank: int,
    open_file: Callable[[int], ShardFile],
) -> SavedTensors:
    """The shard of rank `rank` of a run with `layout` and `lora`: its own file where that is the one that it
    would save, else its shard of the model."""
    saved, facts, place = state.layout, state.model.facts, layout.ranks.place(rank)
    if saved.cut != layout.cut:
        return Resharded(facts, saved, place, open_file, layout.virtual_stages, lora)
    rules = trained_rules(facts, lora)
    if saved.distributed_optimizer and layout.distributed_optimizer and saved.ranks == layout.ranks:
        shard = open_file(rank)
    else:
        shard = whole_shard(rules, saved, saved.ranks.senders[place.shard], open_file)
    refuse_adapters(shard, rules)
    return shard


def load_other(
    path: Path, layout: RankLayout, model: TrainedModel, rank: int, lora: LoraSection | None = None
) -> LoadedCheckpoint:
    """The checkpoint of another run that `trainer.load` names, whatever its layout and dtype.

    Raises InputError when it is broken, or of another model."""
    folder = find(path, "trainer.load")
    state = checkpoint.read_any(folder)
    checkpoint.check_facts(folder, state, model.facts)
    open_file = partial(checkpoint.open_shard, folder, state)
    # Whole parameters: this run may train others of them.
    whole = replace(layout, distributed_optimizer=False)
    return LoadedCheckpoint(state, read_shard(state, whole, lora, rank, open_file), str(folder))


class FolderCheckpoints:
    """Example: FolderCheckpoints(run_folder).load(layout, model, rank=0)"""

    def __init__(
        self, folder: Path, add: Callable[[Path, TrainerState], None] = lambda folder, state: None
    ) -> None:
        """`folder`: in which `checkpoints/` lies. `add` puts more into each new one, which has all shards
        already."""
        self._folder, self._add = folder, add

    def write_shard(self, step: int, number: int, tensors: Tensors) -> str:
        return checkpoint.write_shard(self._folder, step, number, tensors)

    def publish(self, state: TrainerState, keep: Keep) -> str:
        return str(checkpoint.publish(self._folder, state, keep, lambda to: self._add(to, state)))

    def tidy(self) -> None:
        checkpoint.tidy(self._folder)

    def load(
        self, layout: RankLayout, model: TrainedModel, rank: int, lora: LoraSection | None = None
    ) -> LoadedCheckpoint | None:
        folder = newest(self._folder)
        if folder is None:
            return None
        state = checkpoint.read_state(folder, layout, model)
        shard = read_shard(
            state, layout, lora, rank, lambda one: checkpoint.open_shard(folder, state, one)
        )
        return LoadedCheckpoint(state, shard, str(folder))


class BucketCheckpoints:
    """Example: BucketCheckpoints(open_place("s3://models/runs/demo", "run.checkpoints"), run_folder)"""

    def __init__(self, place: Place, folder: Path) -> None:
        """`place`: the run's own. `folder`: of this host, for the newest parts."""
        self._place, self._folder = place, folder / FOLDER
        self._held = 0
        """The step of which this rank last read or wrote its part."""

    def write_shard(self, step: int, number: int, tensors: Tensors) -> str:
        partial = self._folder / _step_name(step) / f"shard-{number}.partial"
        partial.parent.mkdir(parents=True, exist_ok=True)
        digest = write_tensors(partial, tensors)
        name = _part_name(step, number, digest)
        path = self._local(name)
        partial.replace(path)
        self._place.upload(path, name)
        self._drop_local(number, path)
        self._held = step
        return digest

    def publish(self, state: TrainerState, keep: Keep) -> str:
        parts = {_part_name(state.step, rank, digest) for rank, digest in enumerate(state.shards)}
        there = self._place.sizes(FOLDER)
        if lacking := parts - there.keys():
            raise UnavailableError(f"{self._place.url}: lacks {', '.join(sorted(lacking))}")
        name = f"{FOLDER}/{_step_name(state.step)}"
        self._place.write(checkpoint.dump_state(state).encode(), f"{name}/{STATE}")
        self._prune(parts, {*there, f"{name}/{STATE}"}, keep)
        return f"{self._place.url}/{name}"

    def tidy(self) -> None:
        """In the bucket nothing is half; what no state names goes with the next `publish`."""
        for half in self._folder.glob("*/*.partial"):
            half.unlink(missing_ok=True)

    def load(
        self, layout: RankLayout, model: TrainedModel, rank: int, lora: LoraSection | None = None
    ) -> LoadedCheckpoint | None:
        steps = _steps(self._place.sizes(FOLDER))
        if not steps:
            return None
        step = max(steps)
        folder = f"{FOLDER}/{_step_name(step)}"
        where = f"{self._place.url}/{folder}"
        text = self._place.read(f"{folder}/{STATE}").decode(errors="replace")
        state = checkpoint.parse_state(text, where, layout, model)
        self._held = step
        shard = read_shard(state, layout, lora, rank, lambda one: self._shard(state, one))
        return LoadedCheckpoint(state, shard, where)

    def _shard(self, state: TrainerState, number: int) -> ShardFile:
        """From this host's disk, or fetched: where it lacks, or what lies there is damaged."""
        step, digest = state.step, state.shards[number]
        name = _part_name(step, number, digest)
        path, where = self._local(name), f"{self._place.url}/{name}"
        remedy = checkpoint.remedy(_step_name(step))
        if path.is_file():
            try:
                shard = ShardFile(path, digest, str(path), remedy)
                shard.check()
            except InputError as error:
                logger.warning("%s; it is fetched", error)
                path.unlink(missing_ok=True)
            else:
                return shard
        try:
            fetch_file(self._place, name, path)
        except NotFoundError as error:
            raise InputError(f"{error}, and {STATE} beside it names it; {remedy}") from None
        return ShardFile(path, digest, where, remedy)

    def _prune(self, parts: set[str], there: set[str], keep: Keep) -> None:
        """States first: without its state a checkpoint is none. Of the step that was saved, what its
        state does not name goes as well."""
        kept = keep.chosen({step: self._score(step, keep) for step in _steps(there)})
        folders = tuple(f"{FOLDER}/{_step_name(step)}/" for step in kept)
        saved = {name.rpartition("/")[0] for name in parts}
        old = {
            name
            for name in there
            if not name.startswith(folders)
            or (
                name.rpartition("/")[0] in saved
                and name not in parts
                and not STATE_NAME.fullmatch(name)
            )
        }
        states = {name for name in old if STATE_NAME.fullmatch(name)}
        self._place.delete(states)
        self._place.delete(old - states)

    def _score(self, step: int, keep: Keep) -> float | None:
        if not keep.best:
            return None  # then no other state is fetched
        name = f"{FOLDER}/{_step_name(step)}/{STATE}"
        return checkpoint.score_of(self._place.read(name).decode(errors="replace"))

    def _drop_local(self, number: int, newest: Path) -> None:
        """This rank's older parts, and what was fetched of another layout two saves ago: others of the
        host may need their last part until the next one is safe."""
        for path in self._folder.glob(f"{PREFIX}*/shard-*-*.safetensors"):
            is_own = path.name.startswith(f"shard-{number}-")
            step = path.parent.name.removeprefix(PREFIX)
            is_older = step.isdecimal() and int(step) < self._held
            if path != newest and (is_own or is_older):
                path.unlink(missing_ok=True)

    def _local(self, name: str) -> Path:
        return self._folder.parent / name


def _steps(names: Iterable[str]) -> list[int]:
    """Those that have a state."""
    return [int(found[2]) for name in names if (found := STATE_NAME.fullmatch(name))]


def _step_name(step: int) -> str:
    return f"{PREFIX}{step:05d}"


def _part_name(step: int, number: int, digest: str) -> str:
    return f"{FOLDER}/{_step_name(step)}/shard-{number}-{digest}.safetensors"
