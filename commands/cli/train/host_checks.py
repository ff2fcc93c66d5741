"""What a service needs of its host, looked for before it starts: model, data, places, room.

Each fault is one line that names the process, the host and the remedy. What is wrong ends the
process with exit code 2, before anything of the run has trained. What the doctor finds is only reported.
"""

from __future__ import annotations

import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from commands.cli.inspect.plan import thawed_patterns
from commands.cli.train.preflight import check_datasets, check_model, show_errors, with_checkpoint
from services.trainer.checkpoints.checkpoint_folder import STATE
from trimaran.config import RunConfig
from trimaran.errors import InputError, UnavailableError
from trimaran.host.lifetime import PARENT_VARIABLE
from trimaran.host.places import is_bucket, open_place
from trimaran.model.fetch import find_model
from trimaran.model.folder import read_model_folder
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.plan import choices_of
from trimaran.model.memory.rank import rank_memory
from trimaran.model.memory.work import work_of
from trimaran.run.agreement import (
    agree_on_checkpoint,
    agree_on_data,
    agree_on_model,
    agree_on_weights,
)
from trimaran.run.context import RunContext
from trimaran.run.environment import COMPUTING, process_name
from trimaran.run.place import KEY, claim_place, has_checkpoint, place_url, run_place
from trimaran.store import open_store


async def prepare_host(kind: str, index: int, config: RunConfig, run: RunContext) -> RunConfig:
    """The configuration with this host's own model folder. Raises InputError, and UnavailableError
    where a place does not answer.

    Example: config = asyncio.run(prepare_host("rollout", 0, config, run))
    """
    who = process_name(kind, index)
    try:
        if kind in COMPUTING:
            config = _with_model(config)
        if kind == "controller":
            _check_data(config, run)
        begins = kind == "trainer" and not has_checkpoint(config, run)
        if begins:
            config = with_checkpoint(config)
        if kind in ("controller", *COMPUTING):
            await _agree(kind, who, config, run, begins)
        if kind == "trainer" and (file := config.trainer.checkpoint_file(index)) is not None:
            _check_room(config, run, index, file)
        if kind == "controller":
            _check_places(config, run, who)
    except (InputError, UnavailableError) as error:
        where = f"{who} on {socket.gethostname()}"
        lines = "\n".join(f"{where}: {line}" for line in str(error).splitlines())
        kind_of = InputError if isinstance(error, InputError) else UnavailableError
        raise kind_of(lines) from None
    if not _has_launcher_here(run):
        show_errors(config, "rollout" if kind == "follower" else kind)
    return config


def _has_launcher_here(run: RunContext) -> bool:
    """A launcher on this host has read the data and asked the doctor already."""
    return run.launcher == "local" and PARENT_VARIABLE in os.environ


def _with_model(config: RunConfig) -> RunConfig:
    folder = find_model(config.model, config.start_timeout)
    check_model(config, folder)
    return config.model_copy(update={"model": config.model.model_copy(update={"path": folder})})


def _check_data(config: RunConfig, run: RunContext) -> None:
    for path in config.data.files:
        if not path.is_file() or not os.access(path, os.R_OK):
            raise InputError(f"data: {path} cannot be read; the controller's host needs the data")
    if not _has_launcher_here(run):
        check_datasets(config)


async def _agree(kind: str, who: str, config: RunConfig, run: RunContext, begins: bool) -> None:
    """With the run's other processes and lives, by its store, on what each has found. `begins`: a rank, without a
    checkpoint of the run's own."""
    store = await open_store(run.store_url)
    try:
        if kind in COMPUTING:
            await agree_on_model(store, run.run_id, who, config.model.path)
        if kind == "trainer" and config.network.subnet is not None:  # it may be on several hosts
            await agree_on_weights(store, run.run_id, who, config.model.path)
        if begins and (load := config.trainer.load):
            await agree_on_checkpoint(store, run.run_id, who, load / STATE)
        if kind == "controller":
            await agree_on_data(store, run.run_id, config.data.files)
        if kind not in ("rollout", "follower") and (place := run_place(config, run.run_id)):
            await claim_place(store, run.run_id, who, place)
    finally:
        await store.close()


def _check_places(config: RunConfig, run: RunContext, who: str) -> None:
    """Where the controller writes payloads, and what people read. Ranks of the trainer look by themselves
    once they have met (`services/trainer/checkpoints/common_place.py`)."""
    if config.run.payloads is not None:
        _check_writable(config.run.payloads, "run.payloads", who)
    if config.run.checkpoints is not None:
        _check_writable(place_url(config, run.run_id), KEY, who)


def _check_writable(url: str, key: str, who: str) -> None:
    """Writes a few bytes there, reads and removes them."""
    place, name = open_place(url, key), f".can-write-{who}-{os.getpid()}"
    place.write(b"?", name)
    place.read(name)
    place.delete([name])


def _check_room(config: RunConfig, run: RunContext, rank: int, file: int) -> None:
    """For what the rank writes; `file`: the number of its file in a checkpoint."""
    url = place_url(config, run.run_id) if config.run.checkpoints else None
    # Beside a bucket lie the newest part and the one that is being written.
    folder = run.folder if url is None or is_bucket(url) else Path(url)
    kept = 2 if is_bucket(url) else config.run.num_checkpoints
    weights = sum(map(_size, config.model.path.glob("*.safetensors")))
    model = ModelSizes(read_model_folder(config.model.path), config.model.dtype)
    place = config.trainer.layout.place(rank)
    choices = choices_of(config, True, thawed_patterns(config, model.facts))
    share = rank_memory(model, place, work_of(config), choices).saved
    have = sum(map(_size, folder.glob(f"checkpoints/*/shard-{file}[-.]*safetensors")))
    models = 1 + kept * config.run.checkpoint_models  # and the one at the end
    needed = kept * share + (models * weights if rank == 0 else 0) - have
    if (free := shutil.disk_usage(folder).free) < needed:
        raise InputError(
            f"{folder}: {kept} checkpoints and the trained model take up to {needed / 1e9:,.2f} GB more,"
            f" and the disk has {free / 1e9:,.2f}; make room there, keep fewer (run.keep_checkpoints), or"
            " let run.checkpoints name a larger place"
        )


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):  # another process has just removed it
        return path.stat().st_size
    return 0
