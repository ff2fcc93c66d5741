"""The folders of runs: made, filled for the launcher, and removed."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.manager.records import Managed
from services.manager.scheduling.pools import PoolDevice
from trimaran.config import RunConfig, parse_config
from trimaran.errors import InputError, UnavailableError
from trimaran.host.shared_memory import SUFFIX, remove_left
from trimaran.run.context import CONTEXT_NAME, RunContext
from trimaran.run.folder import write_config
from trimaran.store import is_shared, run_store_url
from trimaran.trust.access import NO_TRUST, Trust, derive_token, make_token, write_token


@dataclass(frozen=True, slots=True)
class Deployment:
    """Example: Deployment("external", Trust(read_token(path), is_network_trusted=True))"""

    launcher: str = "local"
    """What starts the processes of runs."""
    trust: Trust = NO_TRUST
    """How the services of runs trust each other. Its token is the operator's, of which each run has what
    `_token_of` says."""


LOCAL = Deployment()


@contextmanager
def writing(run: Managed) -> Generator[None]:
    """Whatever the system refuses in the run's folder is the machine's fault, or the manager's folder's:
    the run has named neither. Raises UnavailableError."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"run {run.run_id}: {run.folder} cannot be written ({error.strerror}); see that the"
            " manager's folder can, and that the manager may open enough files (ulimit -n)"
        ) from None


def prepare(run: Managed, deployment: Deployment = LOCAL) -> None:
    """The run's folder with its context, as it should be by now. Raises InputError, and
    UnavailableError."""
    with writing(run):
        _prepare(run, deployment)


def _prepare(run: Managed, deployment: Deployment) -> None:
    folder = Path(run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    is_new = not (folder / CONTEXT_NAME).exists()
    if is_new and any(folder.iterdir()):
        raise InputError(
            f"run {run.run_id}: {folder} belongs to something else; submit the run again"
        )
    context = RunContext.in_folder(folder)
    if context.run_id != run.run_id:
        raise InputError(f"run {run.run_id}: {folder} is another run's; submit the run again")
    (folder / "logs").mkdir(exist_ok=True)
    trust = replace(deployment.trust, token=_token_of(run, deployment))
    wanted = RunContext(run.run_id, folder, run.store_url, trust, deployment.launcher)
    if is_new or wanted != context:
        wanted.write()


def _token_of(run: Managed, deployment: Deployment) -> str:
    """Made in the run's folder where it is not there yet.

    External services have the operator's token itself. Other runs have one each: random, or made of the
    operator's, so that a manager on another host has the same. It then stays as it is, because services
    that live show it.
    """
    folder, given = Path(run.folder), deployment.trust.token
    if given and deployment.launcher == "external":
        return write_token(folder, given)
    return make_token(folder, derive_token(given, run.run_id) if given else "")


def write_run_files(run: Managed, deployment: Deployment = LOCAL) -> RunConfig:
    """What the launcher reads: the configuration, with the devices that the run has, and how its
    services trust each other from now on."""
    prepare(run, deployment)
    config = granted_config(run, has_devices=deployment.launcher == "local")
    with writing(run):
        write_config(Path(run.folder), config)
    return config


def granted_config(run: Managed, has_devices: bool = True) -> RunConfig:
    """Names the devices of the trainer and of the replicas that the run starts with, which are the same
    where both take turns; those beyond come by the record of its replicas. `has_devices`: of this
    machine; elsewhere they are only counted, and each process takes those that it is shown."""
    tree: dict[str, Any] = {**run.config}
    num_replicas = min(run.min_replicas, len(run.grant.replicas))
    tree["trainer"] = {**run.config["trainer"], "device": run.trainer.kind}
    tree["rollout"] = {
        **run.config["rollout"],
        "device": run.replica.kind,
        "replicas": num_replicas,
        "max_replicas": run.max_replicas,
    }
    replicas = [device for i in range(num_replicas) for device in run.grant.replicas[i]]
    if has_devices and run.trainer.kind != "cpu":
        tree["trainer"]["devices"] = [_name(device) for device in run.grant.trainer or replicas]
    if has_devices and run.replica.kind != "cpu":
        tree["rollout"]["devices"] = [_name(device) for device in replicas]
    return parse_config(tree, source=f"run {run.run_id}")


def _name(device: PoolDevice) -> int | str:
    """As `trainer.devices` takes it: a number, or the UUID of a GPU."""
    return int(device.name) if device.name.isdecimal() else device.name


def remove_folder(folder: Path, run_id: str) -> None:
    """All that lies in the folder of this run, and itself; of a symbolic link in it, the link.

    A folder that is another's by now, or a link, stays: only what the manager made is removed.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    if (folder / CONTEXT_NAME).exists() and RunContext.in_folder(folder).run_id == run_id:
        for note in (folder / "logs").glob(f"*{SUFFIX}"):
            remove_left(note, seconds=0.0)
        assert shutil.rmtree.avoids_symlink_attacks
        shutil.rmtree(folder)


def own_folder(run: Managed, folder: Path, store_url: str) -> Managed:
    """The run as a manager has it that may stand on another host than the one before: with a folder
    here, and reached at our store's address. A run with a store of its own stays where it is."""
    if not is_shared(store_url) or run.is_deleted:
        return run
    place = Path(run.folder)
    if place.parent != folder and not place.is_dir():
        place = folder / run.run_id
    return replace(run, folder=str(place), store_url=run_store_url(store_url, run.run_id))
