"""The folders of runs: made, filled for the launcher, and removed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.manager.pools import Device
from services.manager.records import Managed
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError
from trimaran.launch.run_folder import write_config
from trimaran.run_context import CONTEXT_NAME, RunContext
from trimaran.trust import NO_TRUST, Trust, make_token


def prepare(run: Managed, trust: Trust = NO_TRUST) -> None:
    """The run's folder with its context; nothing where it is there. Raises InputError.

    `trust`: as the operator wants it of all runs; each has a token of its own.
    """
    folder = Path(run.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"run {run.run_id}: {folder} cannot be made ({error.strerror}); name a folder that can"
            " when you start the manager"
        ) from None
    if not (folder / CONTEXT_NAME).exists() and any(folder.iterdir()):
        raise InputError(f"run {run.run_id}: {folder} is somebody else's; submit the run again")
    if RunContext.in_folder(folder).run_id != run.run_id:
        raise InputError(f"run {run.run_id}: {folder} is another run's; submit the run again")
    (folder / "logs").mkdir(exist_ok=True)
    if not (folder / CONTEXT_NAME).exists():
        _write_context(run, trust)


def _write_context(run: Managed, trust: Trust) -> None:
    folder = Path(run.folder)
    trust = replace(trust, token=make_token(folder))
    RunContext(run.run_id, folder, run.store_url, trust).write()


def write_run_files(run: Managed, trust: Trust = NO_TRUST) -> RunConfig:
    """What the launcher reads: the configuration, with the devices that the run has, and how its
    services trust each other from now on."""
    prepare(run, trust)
    _write_context(run, trust)
    config = granted_config(run)
    write_config(Path(run.folder), config)
    return config


def granted_config(run: Managed) -> RunConfig:
    """Names the devices of the trainer and of the replicas that the run starts with; those beyond
    come by the record of its replicas."""
    tree: dict[str, Any] = {**run.config}
    num_replicas = min(run.min_replicas, len(run.grant.replicas))
    tree["trainer"] = {**run.config["trainer"], "device": run.trainer.kind}
    tree["rollout"] = {
        **run.config["rollout"],
        "device": run.replica.kind,
        "replicas": num_replicas,
        "max_replicas": run.max_replicas,
    }
    if run.trainer.kind != "cpu":
        tree["trainer"]["devices"] = [_name(device) for device in run.grant.trainer]
    if run.replica.kind != "cpu":
        tree["rollout"]["devices"] = [
            _name(device) for i in range(num_replicas) for device in run.grant.replicas[i]
        ]
    return parse_config(tree, source=f"run {run.run_id}")


def _name(device: Device) -> int | str:
    """As `trainer.devices` takes it: a number, or the UUID of a GPU."""
    return int(device.name) if device.name.isdecimal() else device.name


def remove_folder(folder: Path, run_id: str) -> None:
    """All that lies in the folder of this run, and itself; of a symbolic link in it, the link.

    A folder that is another's by now, or a link, stays: only what the manager made is removed.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    if (folder / CONTEXT_NAME).exists() and RunContext.in_folder(folder).run_id == run_id:
        assert shutil.rmtree.avoids_symlink_attacks
        shutil.rmtree(folder)
