"""An agent program and a controller, for tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.environment.agents.host import AgentHost
from services.environment.environment import EpisodeEnvironment, TakesUsage
from trimaran.config import parse_config
from trimaran.config.tree import RunConfig
from trimaran.run.context import RunContext
from trimaran.store import store_in
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Opening, Prompt, Reply, Usage

PROMPT = Prompt(
    "train.jsonl:1", (Message("user", "What is 1 + 2?"),), "sums", "3", extras={"level": "easy"}
)
Policy = Callable[[list[Message]], Message]


def config_for(command: tuple[str, ...], **environment: Any) -> RunConfig:
    agent = {"command": list(command), **environment.pop("agent", {})}
    endpoints = environment.pop("endpoints", {})
    return parse_config(
        {
            "run": {"name": "agents", "steps": 1, "groups_per_step": 1},
            "model": {"path": "/models/policy"},
            "data": {"train": "/data/train.jsonl"},
            "rollout": {"group_size": 2, "max_prompt_tokens": 64, "max_tokens": 64},
            "endpoints": endpoints,
            "environment": {"agent": agent, **environment},
        }
    )


@asynccontextmanager
async def agent_host(
    program: Path | None, folder: Path | None = None, **environment: Any
) -> AsyncGenerator[AgentHost]:
    """Of a Python program, which the operator allows. `folder`: of the run, where it is not the program's."""
    command = ("python", str(program)) if program else ()
    config = config_for(command, **environment)
    allowed = Allowed.from_entries([f"network {' '.join(command)}"] if command else [])
    folder = folder or (program.parent if program else None)
    assert folder
    run = RunContext("agents", folder, store_in(folder))
    async with AgentHost(config, allowed, run, 0) as host:
        yield host


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
