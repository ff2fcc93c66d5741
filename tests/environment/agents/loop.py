"""An agent program and a controller, for tests."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from services.environment.agents.host import AgentHost
from services.environment.environment import EpisodeEnvironment, TakesUsage
from tests.configs import configure
from trimaran.run.context import RunContext
from trimaran.store import store_in
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Opening, Prompt, Reply, Usage

PROMPT = Prompt(
    "train.jsonl:1", (Message("user", "What is 1 + 2?"),), "sums", "3", extras={"level": "easy"}
)
Policy = Callable[[list[Message]], Message]


@asynccontextmanager
async def agent_host(
    program: Path | None, folder: Path | None = None, **environment: Any
) -> AsyncGenerator[AgentHost]:
    """Of a Python program, which the operator allows. `folder`: of the run, where it is not the program's."""
    command = ("python", str(program)) if program else ()
    endpoints = environment.pop("endpoints", {})
    section = {"agent": {"command": list(command)}, **environment}
    config = configure(model={"path": "policy"}, environment=section, endpoints=endpoints)
    allowed = Allowed.from_entries([f"network {' '.join(command)}"] if command else [])
    folder = folder or (program.parent if program else None)
    assert folder
    run = RunContext("agents", folder, store_in(folder))
    async with AgentHost(config, allowed, run, 0) as host:
        yield host


@asynccontextmanager
async def episode_of(program: Path, **environment: Any) -> AsyncGenerator[Any]:
    """An environment of such a host."""
    async with agent_host(program, **environment) as host:
        episode = host.create("17.1.0")
        yield episode
        await episode.close()


async def take(folder: Path) -> Any:
    """An episode, as a program that was started elsewhere takes it."""
    endpoint = json.loads((folder / "endpoint-0.json").read_text())
    shown = {"Authorization": f"Bearer {endpoint['token']}"}
    async with (
        aiohttp.ClientSession(headers=shown) as session,
        session.post(endpoint["url"] + "/v1/episodes/next") as answer,
    ):
        assert answer.status == 200
        return await answer.json()


async def play(
    environment: EpisodeEnvironment, policy: Policy, most: int = 20
) -> tuple[Opening, list[Reply]]:
    """An episode, as the controller drives it. Each sequence is one conversation."""
    opening = await environment.open(PROMPT, seed=7)
    sequences, current, replies = [list(opening.messages)], 0, list[Reply]()
    while len(replies) < most:
        said = policy(sequences[current])
        sequences[current].append(said)
        assert isinstance(environment, TakesUsage)
        environment.usage = Usage(10 * len(sequences[current]), 2)
        replies.append(await environment.step(said, "stop"))
        if replies[-1].done:
            break
        current = replies[-1].sequence
        if current == len(sequences):
            sequences.append([])
        sequences[current] += replies[-1].messages
    return opening, replies
