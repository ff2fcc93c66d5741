"""Where a trainer's checkpoints lie: in a folder that all its hosts see, or in a bucket.

In a folder `services/trainer/checkpoint.py` says how. In a bucket:

    PLACE/RUN_ID/checkpoints/step-00010/shard-0-<digest>.safetensors
    PLACE/RUN_ID/checkpoints/step-00010/state.json      written last: it names the others by digest

A rank writes its part to its own disk, then uploads it. The part stays on the disk until the next one
is safe, so that a start on the same host need not fetch it. A host that lacks it fetches it, and
checks it by the digest in its name. So a part that somebody left behind harms nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from services.trainer import checkpoint
from services.trainer.checkpoint import FOLDER, PREFIX, STATE, Model, RankLayout, TrainerState
from trimaran.config import RunConfig
from trimaran.errors import InputError, NotFoundError, UnavailableError
from trimaran.places import Place, fetch_file, is_bucket
from trimaran.run_context import RunContext
from trimaran.run_place import place_url

logger = logging.getLogger(__name__)

Tensors = Mapping[str, torch.Tensor]
STATE_NAME = re.compile(rf"{FOLDER}/({PREFIX}(\d+))/{re.escape(STATE)}")


class Loaded(NamedTuple):
    """The newest checkpoint, as one rank reads it."""

    state: TrainerState
    shard: dict[str, torch.Tensor]
    place: str


class Checkpoints(Protocol):
    """Calls block, and each is whole or has changed nothing."""

    def write_shard(self, step: int, number: int, tensors: Tensors) -> str:
        """One rank's shard of the model, which is no checkpoint until `publish`. Its digest.

        Raises InternalError when it holds a number that is not finite.
        """
        ...

    def publish(self, state: TrainerState, keep: int) -> str:
        """Once every rank has written. Drops all but the newest `keep`; where it lies."""
        ...

    def tidy(self) -> None:
        """After an interrupted save."""
        ...

    def load(self, layout: RankLayout, model: Model, number: int) -> Loaded | None:
        """None before the first. Raises InputError when it is broken, or of another model."""
        ...


def open_checkpoints(config: RunConfig, run: RunContext, place: Place | None) -> Checkpoints:
    """As `run.checkpoints` says. `place`: the run's own in a bucket."""
    if place is not None:
        return BucketCheckpoints(place, run.folder)
    return FolderCheckpoints(shared_folder(config, run))


def shared_folder(config: RunConfig, run: RunContext) -> Path:
    """Where this run's checkpoints and its model go, or are put together before they go to a bucket."""
    if config.run.checkpoints is None or is_bucket(config.run.checkpoints):
        return run.folder
    return Path(place_url(config, run.run_id))


class FolderCheckpoints:
    """Example: FolderCheckpoints(run_folder).load(layout, model, number=0)"""

    def __init__(self, folder: Path) -> None:
        """`folder`: in which `checkpoints/` lies."""
        self._folder = folder

    def write_shard(self, step: int, number: int, tensors: Tensors) -> str:
        return checkpoint.write_shard(self._folder, step, number, tensors)

    def publish(self, state: TrainerState, keep: int) -> str:
        return str(checkpoint.publish(self._folder, state, keep))

    def tidy(self) -> None:
        checkpoint.tidy(self._folder)

    def load(self, layout: RankLayout, model: Model, number: int) -> Loaded | None:
        folder = checkpoint.newest(self._folder)
        if folder is None:
            return None
        state = checkpoint.read_state(folder, layout, model)
        shard = checkpoint.read_shard(folder, number, state.shards[number])
        return Loaded(state, shard, str(folder))


class BucketCheckpoints:
    """Example: BucketCheckpoints(open_place("s3://models/runs/demo", "run.checkpoints"), run_folder)"""

    def __init__(self, place: Place, folder: Path) -> None:
        """`place`: the run's own. `folder`: of this host, for the newest parts."""
        self._place, self._folder = place, folder / FOLDER

    def write_shard(self, step: int, number: int, tensors: Tensors) -> str:
        partial = self._folder / _step_name(step) / f"shard-{number}.partial"
        partial.parent.mkdir(parents=True, exist_ok=True)
        digest = checkpoint.write_tensors(partial, tensors)
        name = _part_name(step, number, digest)
        path = self._local(name)
        partial.replace(path)
        self._place.upload(path, name)
        self._drop_local(number, path)
        return digest

    def publish(self, state: TrainerState, keep: int) -> str:
        parts = {_part_name(state.step, rank, digest) for rank, digest in enumerate(state.shards)}
        there = self._place.sizes(FOLDER)
        if lacking := parts - there.keys():
            raise UnavailableError(f"{self._place.url}: lacks {', '.join(sorted(lacking))}")
        name = f"{FOLDER}/{_step_name(state.step)}"
        self._place.write(checkpoint.dump_state(state).encode(), f"{name}/{STATE}")
        self._prune(parts, {*there, f"{name}/{STATE}"}, keep)
        return f"{self._place.url}/{name}"

    def tidy(self) -> None:
        """In the bucket nothing is half; what nobody names goes with the next `publish`."""
        for partial in self._folder.glob("*/*.partial"):
            partial.unlink(missing_ok=True)

    def load(self, layout: RankLayout, model: Model, number: int) -> Loaded | None:
        steps = _steps(self._place.sizes(FOLDER))
        if not steps:
            return None
        step = max(steps)
        folder = f"{FOLDER}/{_step_name(step)}"
        where = f"{self._place.url}/{folder}"
        text = self._place.read(f"{folder}/{STATE}").decode(errors="replace")
        state = checkpoint.parse_state(text, where, layout, model)
        name = _part_name(step, number, state.shards[number])
        return Loaded(state, self._shard(name, state.shards[number], step), where)

    def _shard(self, name: str, digest: str, step: int) -> dict[str, torch.Tensor]:
        """From this host's disk, or fetched: where it lacks, or what lies there is damaged."""
        path, where = self._local(name), f"{self._place.url}/{name}"
        if path.is_file():
            try:
                return checkpoint.load_shard(path, digest, str(path), _step_name(step))
            except InputError as error:
                logger.warning("%s; it is fetched", error)
                path.unlink(missing_ok=True)
        try:
            fetch_file(self._place, name, path)
        except NotFoundError as error:
            raise InputError(
                f"{error}, and {STATE} beside it names it; remove {_step_name(step)} to resume from the"
                " checkpoint before it, if one was kept"
            ) from None
        return checkpoint.load_shard(path, digest, where, _step_name(step))

    def _prune(self, parts: set[str], there: set[str], keep: int) -> None:
        """States first: without its state a checkpoint is none. Of the step that was saved, what its
        state does not name goes as well."""
        kept = sorted(_steps(there))[-keep:]
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

    def _drop_local(self, number: int, newest: Path) -> None:
        for path in self._folder.glob(f"*/shard-{number}-*.safetensors"):
            if path != newest:
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
