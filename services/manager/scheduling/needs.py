"""What a specification asks of the pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from services.manager.scheduling.pools import DeviceRequest, Need, Pool, find_fit
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.host.device import DeviceName, Kind
from trimaran.run.ray.placing import ROLES

AUTO: tuple[Kind, ...] = ("npu", "cuda", "cpu")
"""Kinds of devices in the order in which `auto` prefers them."""
YES = "yes"
"""The label of a pool that is kept for a role; where any is, only those are used for it."""


def find_needs(config: RunConfig, pools: Sequence[Pool]) -> tuple[Need, Need]:
    """The needs of the trainer and of one replica. Raises InputError where no pool is of that kind.

    Where they take turns (`run.pools: colocated`) the replicas are placed, and the trainer needs nothing
    besides: it has their devices.
    """
    trainer, rollout = config.trainer, config.rollout
    if config.is_colocated:
        device = rollout.device if trainer.device == "auto" else trainer.device
        labels = {**trainer.labels, **rollout.labels}
        replica = _need("rollout", device, rollout.tensor_parallel, labels, pools)
        return replace(replica, count=0), replica
    replica = _need("rollout", rollout.device, rollout.tensor_parallel, rollout.labels, pools)
    return (
        _need("trainer", trainer.device, config.num_trainer_ranks, trainer.labels, pools),
        replace(replica, hosts=rollout.hosts),
    )


def check_fits(ask: DeviceRequest, pools: Sequence[Pool], key: str = "rollout.replicas") -> None:
    """Raises InputError that names `key` for a run that could not start if it were the only one."""
    by_name = {pool.name: pool for pool in pools}
    if find_fit(ask, by_name, {pool.name: len(pool.devices) for pool in pools}) is None:
        sizes = ", ".join(f"{pool.name} has {len(pool.devices)} {pool.kind}" for pool in pools)
        raise InputError(
            f"{key}: the run needs {ask.described}, each of these in {_pools_of(ask.replica)}, and the"
            f" pools never have that ({sizes}); lower trainer.data_parallel, rollout.replicas or a"
            f" tensor_parallel{', or raise rollout.hosts' if ask.trainer.count else ''}"
        )


def _pools_of(replica: Need) -> str:
    return "one pool" if replica.hosts == 1 else f"one pool, or in {replica.hosts} equal parts"


def _need(
    section: str,
    device: DeviceName,
    count: int,
    labels: Mapping[str, str],
    pools: Sequence[Pool],
) -> Need:
    role = ROLES[section]
    kept = {role: YES} if any(role in pool.labels for pool in pools) else {}
    for kind in AUTO if device == "auto" else (device,):
        need = Need(kind, count, {**labels, **kept})
        if any(map(need.matches, pools)):
            return need
    listed = ", ".join(f"{pool.name} ({pool.kind} {dict(pool.labels)})" for pool in pools)
    raise InputError(
        f"{section}.device {device}, {section}.labels {dict(labels)}: no pool is like that; there are"
        f" {listed}"
    )
