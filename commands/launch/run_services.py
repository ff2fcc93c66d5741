"""Every service of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from commands.launch.service_process import ServiceProcess
from trimaran.config import RunConfig
from trimaran.host.machine import read_machine
from trimaran.run.environment import (
    followers_of,
    part_of,
    process_name,
    serve_command,
    service_address,
    service_environment,
)
from trimaran.run.folder import CONFIG_NAME
from trimaran.run.placement import Placement, added_variables


def run_services(config: RunConfig, folder: Path, placement: Placement) -> list[ServiceProcess]:
    """Those that the configuration names, as processes of this machine."""
    return [
        _local(config, folder, kind, index, placement.variables(kind, index))
        for kind, index in _members(config)
    ]


def added_replica(
    config: RunConfig, folder: Path, index: int, address: str, devices: tuple[str, ...]
) -> ServiceProcess:
    """A replica beyond those, at an address and on devices of its own."""
    variables = added_variables(config, index, devices, read_machine(os.environ))
    return _local(config, folder, "rollout", index, variables, address)


def remote_services(config: RunConfig, folder: Path) -> list[ServiceProcess]:
    """The same, where not our machine says how they are started and where they listen."""
    return [remote_service(config, folder, kind, index) for kind, index in _members(config)]


def remote_service(config: RunConfig, folder: Path, kind: str, index: int) -> ServiceProcess:
    """One of them, or a replica beyond them. `folder`: of the run, on the launcher's host."""
    name = process_name(kind, index)
    group = _group_of(config, kind, index)
    return ServiceProcess(
        name=name,
        command=(),
        environment={},
        log=folder / "logs" / f"{name}.log",
        leads=kind == "controller",
        takes_along=group - {name},
        expendable=kind in ("rollout", "follower"),
        kind=kind,
        index=index,
    )


def remote_replica(config: RunConfig, folder: Path, index: int) -> list[ServiceProcess]:
    """The processes of one replica, on all of its hosts."""
    followers = [("follower", one) for one in followers_of(config, index)]
    return [remote_service(config, folder, *one) for one in (("rollout", index), *followers)]


def _group_of(config: RunConfig, kind: str, index: int) -> frozenset[str]:
    """Those that cannot go on without each other: the trainer's ranks, and a replica's hosts."""
    if kind == "trainer":
        ranks = (process_name(kind, rank) for rank in range(config.num_trainer_ranks))
        return frozenset((*ranks, "controller"))
    if kind not in ("rollout", "follower"):
        return frozenset()
    replica, _ = part_of(config, kind, index)
    followers = (process_name("follower", one) for one in followers_of(config, replica))
    return frozenset((process_name("rollout", replica), *followers))


def _members(config: RunConfig) -> list[tuple[str, int]]:
    """Kind and index of each, in the order in which they are started."""
    rollout = config.rollout
    return [
        ("reward", 0),
        *(("environment", replica) for replica in range(config.num_environments)),
        ("weight-sync", 0),
        *(("trainer", rank) for rank in range(config.num_trainer_ranks)),
        *(("rollout", replica) for replica in range(rollout.replicas)),
        *(("follower", one) for one in range(rollout.replicas * rollout.num_followers)),
        ("controller", 0),
    ]


def _local(
    config: RunConfig,
    folder: Path,
    kind: str,
    index: int,
    variables: Mapping[str, str],
    address: str = "",
) -> ServiceProcess:
    return replace(
        remote_service(config, folder, kind, index),
        command=serve_command(kind, str(folder / CONFIG_NAME), str(folder), index, address),
        environment={**service_environment(config, kind, os.environ), **variables},
        address=address or service_address(config, kind, index),
    )
