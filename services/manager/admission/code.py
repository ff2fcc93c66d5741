"""Which code, hosts and commands a specification may name: the operator's entries, as they stand there."""

from __future__ import annotations

from services.manager.settings import AllowSection, CredentialsSection
from trimaran.config import EnvironmentSection, PluginSection, RuleSection, RunConfig
from trimaran.errors import ForbiddenError, InputError
from trimaran.trust.allowed import Allowed, canonical_target, origin_of


def with_real_code(config: RunConfig, allow: AllowSection) -> RunConfig:
    """With the places of functions. Raises ForbiddenError that names the field."""
    allowed = Allowed.from_entries(allow.entries)
    environment = config.environment
    if environment is not None:
        environment = _with_real_environment(environment, allow, allowed)
    rules = {
        name: _with_real_rule(name, section, allow, allowed)
        for name, section in config.reward.rules.items()
    }
    reward = config.reward.model_copy(update={"rules": rules})
    return config.model_copy(update={"reward": reward, "environment": environment})


def _with_real_rule(
    name: str, section: RuleSection, allow: AllowSection, allowed: Allowed
) -> RuleSection:
    key, function = f"reward.rules.{name}", section.function
    if section.plugin is not None:
        _check_plugin(section.plugin, key, allow, allowed)
    elif function is not None:
        function = _check_function(function, f"{key}.function", allowed)
    elif allow.rules is not None and (section.rule or name) not in allow.rules:
        known = ", ".join(allow.rules) or "none"
        raise ForbiddenError(
            f"{key}: the rule {section.rule or name} is not allowed here (allowed: {known})"
        )
    return section.model_copy(update={"function": function})


def _with_real_environment(
    section: EnvironmentSection, allow: AllowSection, allowed: Allowed
) -> EnvironmentSection:
    tools = tuple(
        _check_function(named, f"environment.tools[{place}]", allowed)
        for place, named in enumerate(section.tools)
    )
    factory = section.factory and _check_function(section.factory, "environment.factory", allowed)
    if section.plugin is not None:
        _check_plugin(section.plugin, "environment", allow, allowed)
    try:
        if section.openenv is not None:
            allowed.check_url(section.openenv, "environment.openenv")
        if section.agent is not None and section.agent.command:
            agent = section.agent
            allowed.check_command(agent.command, "environment.agent.command", agent.network)
        for place, server in enumerate(section.mcp):
            key = f"environment.mcp[{place}]"
            if server.url is not None:
                allowed.check_url(server.url, f"{key}.url")
            else:
                allowed.check_command(server.command, f"{key}.command")
    except InputError as error:
        raise ForbiddenError(str(error)) from None
    return section.model_copy(update={"tools": tools, "factory": factory})


def _check_function(named: str, key: str, allowed: Allowed) -> str:
    target = canonical_target(named, key)
    module, _, name = target.rpartition(":")
    if name == "*" or target != named or not {target, f"{module}:*"} & allowed.functions:
        raise ForbiddenError(
            f"{key}: {named} is not among the functions that the operator allows; name one of them"
            " as it stands there, a file by its real path"
        )
    return target


def _check_plugin(plugin: PluginSection, key: str, allow: AllowSection, allowed: Allowed) -> None:
    origin = origin_of(plugin.url, f"{key}.plugin.url")
    if origin not in allowed.origins:
        raise ForbiddenError(
            f"{key}.plugin.url: {plugin.url} is not at a host that the operator allows"
        )
    hosts = allow.plugin_credentials
    known = {origin_of(host, "plugin_credentials"): hosts[host] for host in hosts}
    credentials = known.get(origin, CredentialsSection())
    for name in ("token_variable", "ca_file"):
        given = getattr(plugin, name)
        if given is not None and given != getattr(credentials, name):
            raise ForbiddenError(
                f"{key}.plugin.{name}: the operator does not give {given} to this host; leave it out"
            )
