"""Makes the environments of a run's program; owns the endpoint that they share."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from services.environment.agents.app import Rules
from services.environment.agents.endpoint import Endpoint, serving
from services.environment.agents.episode import AgentEnvironment, StartedAgent
from services.environment.agents.live import LivePolicy
from services.environment.environment import EnvironmentHost
from trimaran.config import EnvironmentSection, RunConfig
from trimaran.run.context import RunContext
from trimaran.run.network import find_host
from trimaran.sandbox.program import ProgramSpec, check_host, find_program
from trimaran.trust.allowed import Allowed

KEY = "environment.agent.command"


class AgentHost(EnvironmentHost):
    """Example:
    async with AgentHost(config, Allowed.from_environment(), run, index=0) as host:
        environment = host.create("17.1.0")
    """

    def __init__(self, config: RunConfig, allowed: Allowed, run: RunContext, index: int) -> None:
        """`index`: of this process of the service. Raises InputError for a program that the operator has not
        allowed."""
        assert config.environment
        self._section, self._network = config.environment, config.network
        check_agent(self._section, allowed)
        self._run, self._index = run, index
        self._policy = LivePolicy(config, run)
        self._rules = Rules(Path(config.model.path).name, frozenset(self._section.stop))
        self._stack = AsyncExitStack()
        self._endpoint: Endpoint | None = None
        self._spec: ProgramSpec | None = None

    async def __aenter__(self) -> Self:
        agent = self._section.agent
        assert agent
        if agent.command:
            self._spec = await asyncio.to_thread(find_program, agent.command, agent.network, KEY)
            await check_host(agent.network, KEY)
        policy = await self._stack.enter_async_context(self._policy)
        host = find_host(self._network)
        endpoint = serving(self._rules, policy.complete, host, self._run.trust)
        self._endpoint = await self._stack.enter_async_context(endpoint)
        self._endpoint.write(self._run.folder / f"endpoint-{self._index}.json")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def create(self, episode: str) -> AgentEnvironment:
        assert self._endpoint
        options = self._section.options
        if self._spec is None:
            return AgentEnvironment(episode, self._endpoint, options)
        memory_mib = self._section.memory_mib
        return StartedAgent(episode, self._endpoint, options, self._spec, memory_mib)


def check_agent(section: EnvironmentSection, allowed: Allowed) -> None:
    """Raises InputError for a program that the operator has not allowed."""
    assert section.agent
    if section.agent.command:
        allowed.check_command(section.agent.command, KEY, section.agent.network)
