"""`trimaran environment`: an environment as an HTTP server, and whether one keeps the contract."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager

from pydantic import ValidationError

from commands.cli.plugins.arguments import parse_options
from commands.cli.plugins.checking import Show, check_plugin
from commands.cli.plugins.serving import PluginServer
from services.environment.episodes import OpenEpisodes
from services.environment.loading.load import LoadSpec
from services.environment.local.host import LocalHost
from services.environment.plugins.app import make_app
from services.environment.plugins.checking.asker import DEFAULT_ROW
from services.environment.plugins.checking.check import run_checks
from services.environment.plugins.contract import CONTRACT, Info, PluginRow
from trimaran.config import LAST_PORT, EnvironmentSection
from trimaran.errors import InputError
from trimaran.plugins.checking import CheckResult, PluginAccess
from trimaran.plugins.forms import first_fault
from trimaran.trust.allowed import Allowed


def serve(arguments: argparse.Namespace) -> int:
    """Until SIGTERM or SIGINT. Raises InputError for what cannot be served."""
    section = _section(arguments)
    allowed = Allowed.from_entries(arguments.names)
    if not 0 <= arguments.port <= LAST_PORT:
        raise InputError(f"--port {arguments.port}: must be at least 0 and at most {LAST_PORT}")
    tools = tuple(allowed.check_function(name, "NAME") for name in section.tools)
    factory = allowed.check_function(section.factory, "NAME") if section.factory else ""
    spec = LoadSpec(tools, factory, section.options, arguments.answer_key)
    info = Info(contract=CONTRACT, name=arguments.names[0], max_sessions=section.max_episodes)
    harm = "decide what the policy sees"
    with PluginServer.claim(arguments, "environment-plugin", harm) as server:
        return asyncio.run(_serve(server, LocalHost(section, spec, allowed), section, info))


async def _serve(
    server: PluginServer, host: LocalHost, section: EnvironmentSection, info: Info
) -> int:
    episodes = OpenEpisodes(host, section)

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        async with host, episodes:
            yield

    app = make_app(episodes, info, server.token, section.options)
    return await server.serve(app, info.name, opened())


def check(arguments: argparse.Namespace) -> int:
    """Returns 1 when a check fails."""
    row = _row(arguments.row)

    def run(access: PluginAccess, show: Show | None) -> Awaitable[Sequence[CheckResult]]:
        return run_checks(access, show, row)

    return check_plugin(arguments, run)


def _section(arguments: argparse.Namespace) -> EnvironmentSection:
    names: list[str] = arguments.names
    if len(names) > 1 and not arguments.tools:
        raise InputError(f"{names[1]}: a server has one class; give --tools for several functions")
    named = {"tools": names} if arguments.tools else {"factory": names[0]}
    limits = {name: getattr(arguments, name) for name in ("timeout", "max_episodes", "memory_mib")}
    options = parse_options(arguments.option)
    try:
        return EnvironmentSection.model_validate({**named, **limits, "options": options})
    except ValidationError as error:
        raise InputError(f"--{first_fault(error).replace('_', '-')}") from None


def _row(text: str | None) -> PluginRow:
    if text is None:
        return DEFAULT_ROW
    try:
        return PluginRow.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"--row: not the contract's row: {first_fault(error)}") from None
