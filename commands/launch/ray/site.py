"""A run whose processes stand on the nodes of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from commands.launch.ray.children import RayChildren
from commands.launch.run_services import remote_replica, remote_services
from commands.launch.service_process import ServiceProcess
from commands.launch.site import Site
from trimaran.config import RunConfig
from trimaran.run.context import RunContext
from trimaran.run.environment import RUNS_OTHERS, plugin_variables, serve_command
from trimaran.run.ray.cluster import Cluster, ray_address
from trimaran.store import Store
from trimaran.trust.allowed import ALLOW_VARIABLE
from trimaran.trust.credentials import is_credential


def ray_site(config: RunConfig, run: RunContext, store: Store) -> Site:
    """Example: ray_site(config, run, store).children"""
    variables = dict(os.environ)

    def complete(service: ServiceProcess) -> ServiceProcess:
        """`devices` of a wish are read where it starts, in the store."""
        command = serve_command(service.kind, None, str(run.folder), service.index)
        own = own_variables(config, service.kind, variables)
        return replace(service, command=command, environment=own)

    def make_replica(index: int, devices: tuple[str, ...]) -> list[ServiceProcess]:
        return [complete(service) for service in remote_replica(config, run.folder, index)]

    return Site(
        [complete(service) for service in remote_services(config, run.folder)],
        make_replica,
        RayChildren(Cluster(ray_address()), run, config, store),
    )


def own_variables(config: RunConfig, kind: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """What a service of this kind gets of the launcher's environment: what the operator allows, and
    secrets that only this kind needs. All else is its node's own."""
    plugins = plugin_variables(config, (kind,))
    return {
        name: value
        for name, value in inherited.items()
        if (kind in RUNS_OTHERS and (name == ALLOW_VARIABLE or name in plugins))
        or (kind == "controller" and is_credential(name))
    }
