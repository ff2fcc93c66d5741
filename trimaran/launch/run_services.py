"""Every service of a run, as processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
    """Those that the configuration names."""
    ranks = [process_name("trainer", rank) for rank in range(config.num_trainer_ranks)]

    def service(kind: str, index: int = 0) -> ServiceProcess:
        variables = placement.variables(kind, index)
        return _service(config, folder, kind, index, variables, frozenset((*ranks, "controller")))

    return [
        service("reward"),
        service("weight-sync"),
        *(service("trainer", rank) for rank in range(len(ranks))),
        *(service("rollout", replica) for replica in range(config.rollout.replicas)),
        service("controller"),
    ]


def added_replica(
    config: RunConfig, folder: Path, index: int, address: str, devices: tuple[str, ...]
) -> ServiceProcess:
    """A replica beyond those, at an address and on devices of its own."""
    variables = added_variables(config, index, devices, read_machine(os.environ))
    return _service(config, folder, "rollout", index, variables, frozenset(), address)


def _service(
    config: RunConfig,
    folder: Path,
    kind: str,
    index: int,
    variables: Mapping[str, str],
    trainer_group: frozenset[str],
    address: str = "",
) -> ServiceProcess:
    name = process_name(kind, index)
    return ServiceProcess(
        name=name,
        command=serve_command(kind, str(folder / CONFIG_NAME), str(folder), index, address),
        environment={**service_environment(config, kind, os.environ), **variables},
        log=folder / "logs" / f"{name}.log",
        leads=kind == "controller",
        takes_along=trainer_group - {name} if kind == "trainer" else frozenset(),
        expendable=kind == "rollout",
        address=address or service_address(config, kind, index),
        kind=kind,
        index=index,
    )
