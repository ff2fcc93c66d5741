"""Every service of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trimaran.config import RunConfig
from trimaran.launch.devices import Placement, added_variables
from trimaran.launch.environment import (
    process_name,
    serve_command,
    service_address,
    service_environment,
)
from trimaran.launch.run_folder import CONFIG_NAME
from trimaran.launch.service_process import ServiceProcess
from trimaran.machine import read_machine


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
    ranks = [process_name("trainer", rank) for rank in range(config.num_trainer_ranks)]
    group = frozenset((*ranks, "controller")) if kind == "trainer" else frozenset[str]()
    return ServiceProcess(
        name=name,
        command=(),
        environment={},
        log=folder / "logs" / f"{name}.log",
        leads=kind == "controller",
        takes_along=group - {name},
        expendable=kind == "rollout",
        kind=kind,
        index=index,
    )


def _members(config: RunConfig) -> list[tuple[str, int]]:
    """Kind and index of each, in the order in which they are started."""
    return [
        ("reward", 0),
        ("weight-sync", 0),
        *(("trainer", rank) for rank in range(config.num_trainer_ranks)),
        *(("rollout", replica) for replica in range(config.rollout.replicas)),
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
