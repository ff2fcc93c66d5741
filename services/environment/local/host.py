"""Who makes environments of tools, of classes and of installed packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Self

from services.environment.environment import EpisodeEnvironment
from services.environment.loading.load import LoadSpec
from services.environment.local.player import PlayerEnvironment
from services.environment.local.worker_tools import WorkerTools
from services.environment.mcp.source import McpTools, check_mcp, require_mcp
from services.environment.tools.environment import ToolEnvironment
from services.environment.tools.source import ToolSource
from services.environment.workers.pool import EnvironmentPool
from trimaran.choices import ENVIRONMENTS
from trimaran.config import EnvironmentSection, RunConfig
from trimaran.errors import InputError
from trimaran.trust.allowed import Allowed

PYTHON_SHARE = 0.8
"""Of a step's time, for a program of the tool `python`: a program that takes longer hears so, and the episode goes on."""


def load_spec(config: RunConfig, section: EnvironmentSection, allowed: Allowed) -> LoadSpec:
    """What workers load; nothing where no code is named. Raises InputError for what the
    operator has not allowed, or is not there."""
    check_mcp(section, allowed)
    tools = tuple(
        allowed.check_function(named, f"environment.tools[{place}]")
        for place, named in enumerate(section.tools)
    )
    factory = ""
    if section.factory:
        factory = allowed.check_function(section.factory, "environment.factory")
    elif section.installed:
        factory = _registered(section.installed)
    python = PYTHON_SHARE * section.timeout if section.python else 0.0
    return LoadSpec(
        *(tools, factory, dict(section.options), config.data.answer_key),
        *(python, section.memory_mib),
    )


def _registered(name: str) -> str:
    """Its package.module:name, which needs no leave: who installs a package has chosen it."""
    try:
        return ENVIRONMENTS.place(name)
    except InputError as error:
        raise InputError(f"environment.installed: {error}") from None


class LocalHost:
    """An `EnvironmentHost`.

    Example:
        async with LocalHost(section, load_spec(config, section, allowed), allowed) as host:
            environment = host.create("17.1.0")
    """

    def __init__(self, section: EnvironmentSection, spec: LoadSpec, allowed: Allowed) -> None:
        self._section, self._spec, self._allowed = section, spec, allowed
        self._stack = AsyncExitStack()
        self._pool: EnvironmentPool | None = None

    async def __aenter__(self) -> Self:
        section = self._section
        if section.mcp:
            require_mcp()
        if self._spec.loads:
            pool = EnvironmentPool(self._spec, section.memory_mib, section.max_message_chars)
            self._pool = await self._stack.enter_async_context(pool)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def create(self, episode: str) -> EpisodeEnvironment:
        if self._pool and self._pool.plays:
            return PlayerEnvironment(self._pool)
        return ToolEnvironment(self._sources(), self._section)

    def _sources(self) -> Sequence[ToolSource]:
        own: list[ToolSource] = [WorkerTools(self._pool)] if self._pool else []
        for place, server in enumerate(self._section.mcp):
            own.append(McpTools(server, f"environment.mcp[{place}]", self._allowed))
        return own

    @property
    def num_processes(self) -> Mapping[str, float]:
        return self._pool.num_processes if self._pool else {}
