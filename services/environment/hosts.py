"""The table of kinds: who makes the environments that a run names."""

from __future__ import annotations

from services.environment.environment import EnvironmentHost
from trimaran.config import EnvironmentSection, RunConfig
from trimaran.errors import InputError
from trimaran.run.context import RunContext
from trimaran.trust.allowed import Allowed


def make_host(
    config: RunConfig, allowed: Allowed, run: RunContext, index: int = 0
) -> EnvironmentHost:
    """Imports late: a kind's libraries are loaded where a run names it. `index`: of this process of the service.
    Raises InputError.

    Example:
        async with make_host(config, Allowed.from_environment(), run) as host:
            environment = host.create("17.1.0")
    """
    section = section_of(config)
    match section.kind:
        case "tools" | "factory" | "installed":
            from services.environment.local.host import LocalHost, load_spec

            return LocalHost(section, load_spec(config, section, allowed), allowed)
        case "plugin":
            from services.environment.plugins.calling import PluginHost

            return PluginHost(section, allowed)
        case "openenv":
            from services.environment.openenv.host import OpenEnvHost

            return OpenEnvHost(section, allowed)
        case "agent":
            from services.environment.agents.host import AgentHost

            return AgentHost(config, allowed, run, index)
        case kind:
            raise InputError(f"environment.{kind}: this version has no such environment")


def check_environment(config: RunConfig, allowed: Allowed) -> None:
    """What can be known to be wrong without running foreign code, so that a run is refused when it is
    submitted. Raises InputError that names the key and the remedy."""
    if (section := config.environment) is None:
        return
    match section.kind:
        case "tools" | "factory" | "installed":
            from services.environment.local.host import load_spec

            load_spec(config, section, allowed)
        case "plugin":
            from services.environment.plugins.calling import check_plugin

            check_plugin(section, allowed)
        case "openenv":
            from services.environment.openenv.host import check_openenv

            check_openenv(section, allowed)
        case "agent":
            from services.environment.agents.host import check_agent

            check_agent(section, allowed)
        case kind:
            raise InputError(f"environment.{kind}: this version has no such environment")


def section_of(config: RunConfig) -> EnvironmentSection:
    """Raises InputError where the run has no section `environment`."""
    if config.environment is None:
        raise InputError("environment: missing; a run without it needs no environment service")
    return config.environment
