"""The folder that holds everything a run leaves behind."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimaran.config import RunConfig, dump_config, load_config, load_tree, parse_config
from trimaran.errors import InputError
from trimaran.host.file_lock import try_lock
from trimaran.run.context import RunContext
from trimaran.run.resumable import LAYOUT_KEYS, PLANNED_KEYS
from trimaran.run.runs import Run, config_key, run_from_tree, run_key
from trimaran.store import read_store, store_name
from trimaran.trust.access import make_token

CONFIG_NAME = "config.yaml"


def make_run_folder(config: RunConfig) -> Path:
    """<run.folder>/<run.name>-<date>-<time>, new and empty but for logs/."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        suffix = f"-{number}" if number > 1 else ""
        folder = config.run.folder.resolve() / f"{config.run.name}-{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(
                f"run.folder: {folder} cannot be made ({error.strerror}); name one that can"
            ) from None
        (folder / "logs").mkdir()
        make_token(folder)
        return folder
    raise AssertionError("unreachable")


def open_run_folder(path: str, overrides: Sequence[str] = ()) -> tuple[Path, RunConfig]:
    """An earlier run's folder and configuration, with what `overrides` say of how long it goes on, what it
    leaves behind and how its trainer is laid out. Raises InputError when it is not one, and for any other override."""
    for override in overrides:
        key = override.partition("=")[0]
        if key not in (*PLANNED_KEYS, *LAYOUT_KEYS):
            raise InputError(
                f"{key}: a resumed run keeps it, as all that changes what its steps train; what may change:"
                f" {', '.join((*PLANNED_KEYS, *LAYOUT_KEYS))}"
            )
    folder = Path(path).resolve()
    if not (folder / CONFIG_NAME).is_file():
        raise InputError(f"--resume: {folder} is not a run folder (it holds no {CONFIG_NAME})")
    (folder / "logs").mkdir(exist_ok=True)
    if not overrides:
        return folder, load_config(folder / CONFIG_NAME)
    saved, tree = load_config(folder / CONFIG_NAME), load_tree(folder / CONFIG_NAME, overrides)
    addresses: dict[str, Any] = tree.get("endpoints") or {}
    tree["endpoints"] = {**addresses, "trainer": []}
    config = parse_config(tree, source=str(folder / CONFIG_NAME))
    if config.num_trainer_ranks != saved.num_trainer_ranks:
        return folder, config  # other addresses are chosen
    return folder, parse_config({**tree, "endpoints": addresses}, source=str(folder / CONFIG_NAME))


async def recorded_run(run: RunContext) -> Run | None:
    """As its processes last recorded it; None where none has."""
    tree = await _recorded(run, run_key(run.run_id))
    return None if tree is None else run_from_tree(tree)


async def recorded_config(run: RunContext) -> RunConfig:
    """As the run's launcher put it into the store. Raises InputError where nothing stands there."""
    tree = await _recorded(run, config_key(run.run_id))
    if tree is None:
        raise InputError(
            f"run {run.run_id}: its store {store_name(run.store_url)} holds no configuration; its"
            " launcher puts it there at its start; or give --config FILE"
        )
    return parse_config(tree, source=f"run {run.run_id}, in its store")


async def _recorded(run: RunContext, key: str) -> Mapping[str, Any] | None:
    store = await read_store(run.store_url)
    try:
        record = await store.get(key) if store else None
    finally:
        if store:
            await store.close()
    return record and record.value


def write_config(folder: Path, config: RunConfig) -> Path:
    """The resolved configuration; each service reads it."""
    path = folder / CONFIG_NAME
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(dump_config(config))
        file.flush()
        os.fsync(file.fileno())  # a power cut would leave its name, and nothing under it
    partial.replace(path)
    return path


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """One launcher a run folder. Raises InputError while another one has it, and where it cannot be locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not try_lock(descriptor, folder):
            raise InputError(f"{folder}: this run is still going on; end it first")
        yield
    finally:
        os.close(descriptor)
